import numpy as np
import pytest
import torch
from augmented import augment

from onsight.data import normalization
from onsight.data.augment import Augmentation
from onsight.data.loader import Images, Loader
from onsight.data.normalization import Normalization, measure_normalization

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def make_images(count=103, shape=(4, 5, 3)):
    generator = torch.Generator().manual_seed(0)
    flat = shape[0] * shape[1] * shape[2]
    pixels = torch.randint(0, 256, (count, flat), dtype=torch.uint8, generator=generator)
    rows = torch.randperm(count, generator=generator)
    return Images(pixels, rows, torch.arange(count) % 7, shape)


def test_gather_gives_each_image_its_own_pixels_and_label():
    images = make_images()
    ids = torch.tensor([5, 0, 102, 5])
    batch = images.gather(ids)
    for place, number in enumerate(ids.tolist()):
        expected = images.pixels[images.rows[number]].view(4, 5, 3)
        assert torch.equal(batch.images[place], expected)
        assert batch.labels[place] == number % 7


def test_pages_of_a_mapped_file_are_released_every_few_batches(tmp_path, monkeypatch):
    """Linux keeps pages around images that were read at random: many times their bytes."""
    path, count, side = tmp_path / "pixels.bin", 400, 256
    path.write_bytes(bytes(count * side * side))
    pixels = np.memmap(path, np.uint8, "c", shape=(count, side, side, 1))
    rows, labels = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    images = Images(torch.from_numpy(pixels).view(count, -1), rows, labels, (side, side, 1), pixels)
    read_bytes, held_bytes = 0, []

    def release(mapped):
        nonlocal read_bytes
        assert mapped is pixels
        held_bytes.append(read_bytes)
        read_bytes = 0

    monkeypatch.setattr("onsight.data.loader.release_pages", release)
    for batch in images.batches(torch.randperm(count).split(10), None):
        read_bytes += batch.images.nbytes
    assert sum(held_bytes) == count * side * side
    assert max(held_bytes) <= 17 << 20


def test_an_epoch_holds_every_image_once_in_a_new_order():
    ids = torch.arange(0, 100, 2)
    loader = Loader(make_images(), ids, 8, CPU)
    epochs = [torch.cat([b.ids for b in loader.epoch(1, epoch)]) for epoch in (0, 1)]
    for order in epochs:
        assert torch.equal(order.sort().values, ids)
    assert not torch.equal(*epochs)
    again = torch.cat([b.ids for b in loader.epoch(1, 0)])
    assert torch.equal(again, epochs[0])


def test_an_epoch_can_go_on_from_any_step():
    loader = Loader(make_images(), torch.arange(50), 8, CPU)
    global_labels = [b.ids for b in loader.epoch(3, 2)]
    for first in range(loader.steps + 1):
        rest = [b.ids for b in loader.epoch(3, 2, first)]
        assert len(rest) == len(global_labels) - first
        assert all(map(torch.equal, rest, global_labels[first:]))


def test_uneven_last_batches():
    images = make_images()
    for count, size, lengths in [
        (10, 4, [4, 4, 2]),
        (9, 4, [4, 5]),
        (8, 4, [4, 4]),
        (1, 4, [1]),
        (3, 4, [3]),
        (5, 1, [1] * 5),
    ]:
        loader = Loader(images, torch.arange(count), size, CPU)
        assert [len(b.ids) for b in loader.epoch(0, 0)] == lengths
        assert loader.steps == len(lengths)
        assert torch.equal(torch.cat([b.ids for b in loader.in_order()]), torch.arange(count))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("count", range(8, 17))
def test_on_accelerators_no_rank_is_left_without_a_image(ranks, count, monkeypatch):
    monkeypatch.setattr(Images, "device", GPU)  # so that batches are handed out where they are
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device, non_blocking=False: tensor)
    images, ids = make_images(), torch.arange(count)
    epochs = [list(Loader(images, ids, 8, GPU, rank, ranks).epoch(0, 0)) for rank in range(ranks)]
    steps = list(zip(*epochs, strict=True))
    assert all(len(share.ids) > 0 for shares in steps for share in shares)
    seen = torch.cat([share.ids for shares in steps for share in shares])
    assert torch.equal(seen.sort().values, ids)
    rest = count % 8
    assert len(steps) == (2 if rest >= max(2, ranks) else count // 8)


def test_measure_equals_numpy():
    images = make_images()
    ids = torch.arange(0, 90)
    pixels = images.gather(ids).images.numpy().astype(np.float64) / 255
    measured = measure_normalization(images, ids)
    assert np.allclose(measured.mean, pixels.mean((0, 1, 2)), atol=1e-6)
    assert np.allclose(measured.std, pixels.std((0, 1, 2)), atol=1e-6)


def test_measure_looks_at_the_first_images(monkeypatch):
    images, ids = make_images(), torch.arange(100)
    first = measure_normalization(images, ids[:40])
    monkeypatch.setattr(normalization, "_SAMPLE", 40)
    assert measure_normalization(images, ids) == first


def test_measure_of_one_colour_does_not_divide_by_zero():
    blank = Images(
        torch.full((5, 4), 9, dtype=torch.uint8), torch.arange(5), torch.zeros(5), (2, 2, 1)
    )
    measured = measure_normalization(blank, torch.arange(5))
    assert measured.apply(blank.gather(torch.arange(5)).images).isfinite().all()


def test_normalization_is_bit_equal_to_the_usual_transform():
    from torchvision.transforms.functional import normalize, to_tensor

    images = make_images().gather(torch.arange(20)).images
    mean, std = (0.5, 0.4, 0.45), (0.5, 0.25, 0.3)
    planes = torch.stack([to_tensor(image.numpy()) for image in images])
    expected = normalize(planes, list(mean), list(std))
    assert torch.equal(Normalization(mean, std).apply(images), expected)
    assert torch.equal(images, make_images().gather(torch.arange(20)).images)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [1, 4, 30])
def test_the_shares_of_all_ranks_are_the_batches_of_one(ranks, size):
    images, ids = make_images(), torch.arange(100)
    global_labels = list(Loader(images, ids, size, CPU).epoch(3, 2))
    loaders = [Loader(images, ids, size, CPU, rank, ranks) for rank in range(ranks)]
    for batch, *shares in zip(
        global_labels, *(loader.epoch(3, 2) for loader in loaders), strict=True
    ):
        assert torch.equal(torch.cat([share.ids for share in shares]), batch.ids)
        assert torch.equal(torch.cat([share.images for share in shares]), batch.images)
        assert all(torch.equal(share.global_labels, batch.labels) for share in shares)
        counts = [len(share.ids) for share in shares]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("ranks", [2, 3, 7])
@pytest.mark.parametrize("mixing", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0}])
def test_shares_are_mixed_as_the_whole_batch_is(ranks, mixing):
    images, ids = make_images(), torch.arange(100)
    augmentation = Augmentation.of(flip=True, translate=0.3, cutout=0.3, **mixing)
    scaling = Normalization((0.5,) * 3, (0.5,) * 3)

    def mixed(rank, ranks):
        loader = Loader(images, ids, 30, CPU, rank, ranks, with_next=True)
        for batch in loader.epoch(3, 2):
            yield augment(augmentation, batch, 3, 2, scaling, 7)

    shares = zip(*(mixed(rank, ranks) for rank in range(ranks)), strict=True)
    for (inputs, targets), parts in zip(mixed(0, 1), shares, strict=True):
        # A batch and a share are other shapes, so the last bit may differ.
        assert torch.allclose(torch.cat([part[0] for part in parts]), inputs, atol=1e-6)
        assert torch.allclose(torch.cat([part[1] for part in parts]), targets, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 11, 101])
def test_in_order_every_image_is_at_one_rank_once(ranks, count):
    ids = torch.arange(count)
    loaders = [Loader(make_images(), ids, 4, CPU, rank, ranks) for rank in range(ranks)]
    seen = torch.cat([batch.ids for loader in loaders for batch in loader.in_order()])
    assert torch.equal(seen.sort().values, ids)
