"""Work that is done once: cached items, files and transforms, and augmentation of batches."""

import time
from collections import namedtuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data._utils import collate
from torchvision.transforms import ColorJitter, Compose, Normalize, RandomHorizontalFlip, ToTensor
from torchvision.transforms.functional import to_pil_image

from onsight_explain.script import memory
from onsight_explain.what_ifs.caching import AugmentBatches, Cache


@pytest.mark.parametrize(
    ("is_random", "transforms", "waits", "values"),
    [
        (False, ["ToTensor"], 0.5, ["items"]),
        (True, ["ToTensor", "RandomErasing"], 0.5, ["fixed"]),
        (True, [], 0.5, ["files"]),
        (False, [], 0.0, []),
    ],
)
def test_random_items_are_not_kept_whole(baseline, is_random, transforms, waits, values):
    item = {"is_random": is_random, "transforms": transforms}
    assert [one.value for one in Cache.candidates(baseline(item=item, waits=waits))] == values


class Items(Dataset):
    """Items of one kind; counts those made."""

    def __init__(self, make):
        self.make, self.made = make, 0

    def __len__(self):
        return 11

    def __getitem__(self, index):
        self.made += 1
        return self.make(index)


Pair = namedtuple("Pair", "image label")
KINDS = {
    "tuple": lambda n: (torch.full((2, 3), n, dtype=torch.uint8), n),
    "list": lambda n: [np.full(2, n, np.float32), np.float64(n), n / 2, n % 2 == 0],
    "dict": lambda n: {"image": torch.tensor([n]), "more": {"label": np.int32(n)}},
    "named": lambda n: Pair(torch.tensor(float(n)), n),
    "number": lambda n: n,
    "names": lambda n: (torch.tensor(n), f"image {n}"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [{}, {"sampler": [3, 3, 1, 7, 0]}, {"drop_last": True}])
def test_batches_are_those_that_collating_would_give(apply, kind, more):
    def batches(dataset):
        torch.manual_seed(3)
        loader = DataLoader(dataset, 4, shuffle="sampler" not in more, **more)
        return [batch for _ in range(2) for batch in loader]

    expected = batches(Items(KINDS[kind]))
    apply(cache="items")
    dataset = Items(KINDS[kind])
    found = batches(dataset)
    assert dataset.made == 11
    assert [type(one) for one in found] == [type(one) for one in expected]
    torch.testing.assert_close(
        [list(map(_plain, tree_leaves(one))) for one in found],
        [list(map(_plain, tree_leaves(one))) for one in expected],
        rtol=0,
        atol=0,
    )


def _plain(leaf):
    return torch.tensor(list(leaf.encode())) if isinstance(leaf, str) else leaf


def test_stacked_items_are_gathered_and_not_collated(apply, monkeypatch):
    collated = []
    monkeypatch.setattr(
        collate, "collate", lambda *args, **kwargs: collated.append(1) or original(*args, **kwargs)
    )
    apply(cache="items")
    loader = DataLoader(Items(KINDS["tuple"]), 4)
    collated.clear()
    assert len(list(loader)) == 3
    assert collated == []


original = collate.collate


@pytest.mark.parametrize("kind", ["tuple", "names"])
def test_a_function_of_the_scripts_own_still_gets_single_items(apply, kind):
    given = []
    apply(cache="items")
    list(DataLoader(Items(KINDS[kind]), 4, collate_fn=given.append))
    assert [type(item) for items in given for item in items] == [tuple] * 11


def test_items_of_several_shapes_are_kept_one_by_one(apply):
    apply(cache="items")
    dataset = Items(lambda n: torch.zeros(n + 1))
    loader = DataLoader(dataset, 1)
    assert [batch.shape[1] for _ in range(2) for batch in loader] == 2 * list(range(1, 12))
    assert dataset.made == 11


def test_without_batches_items_come_one_by_one(apply):
    apply(cache="items")
    items = list(DataLoader(Items(KINDS["tuple"]), batch_size=None))
    assert [number for _, number in items] == list(range(11))


def test_part_of_a_set_too_large_for_memory_is_kept_and_said(apply, monkeypatch):
    monkeypatch.setattr(memory, "_MEMORY_SHARE", 0.0)
    hooks = apply(cache="items")
    (images, labels) = next(iter(DataLoader(Items(KINDS["tuple"]), 4, sampler=range(11))))
    assert images[0, 0, 0] == labels[0] != 0
    assert hooks.notes == ["kept 1 of 11 items, chosen at random"]


@pytest.mark.parametrize(("seconds_left", "expected"), [(6.0, 3.0), (1000.0, 20.0)])
def test_a_cache_is_filled_for_at_most_half_of_the_time_left(
    apply, monkeypatch, seconds_left, expected
):
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    hooks = apply(cache="items")
    hooks.first_step_due = 100.0 + seconds_left
    assert hooks.max_fill_seconds == expected


def test_a_part_is_kept_where_the_first_step_would_be_late(apply):
    hooks = apply(cache="items")
    hooks.first_step_due = time.monotonic()
    DataLoader(Items(KINDS["tuple"]), 4)
    assert hooks.notes == ["kept 1 of 11 items, chosen at random"]


def test_kept_items_come_in_the_same_order(apply, numbers):
    def order():
        torch.manual_seed(5)
        return torch.cat([x for x, _ in DataLoader(numbers(), 8, shuffle=True)]).tolist()

    expected = order()
    apply(cache="items")
    assert order() == expected


def test_fixed_transforms_run_once_and_random_ones_draw_the_same_numbers(apply):
    made = []

    class Fixed:
        def __call__(self, value):
            made.append(value)
            return value + 1.0

    class RandomShift:
        def __call__(self, value):
            return value + torch.rand(())

    class Numbers(Dataset):
        def __init__(self):
            self.transform = Compose([Fixed(), RandomShift()])

        def __len__(self):
            return 6

        def __getitem__(self, index):
            return self.transform(torch.tensor(float(index))), index

    def epochs():
        torch.manual_seed(2)
        loader = DataLoader(Numbers(), 3, shuffle=True)
        return torch.stack([torch.cat([x for x, _ in loader]) for _ in range(2)])

    expected = epochs()
    made.clear()
    apply(cache="fixed")
    assert torch.equal(epochs(), expected)
    assert len(made) == 6


@pytest.mark.parametrize("change", [{"cache": "fixed"}, {"augment_batches": "cpu"}])
def test_subsets_that_share_a_data_set_both_keep_its_transforms(apply, change):
    def make_loaders():
        dataset = Images(RandomHorizontalFlip(1.0), ToTensor())
        return [DataLoader(Subset(dataset, part), 2, shuffle=part[0] == 0) for part in HALVES]

    def batches():
        torch.manual_seed(4)
        return [batch for loader in make_loaders() for batch in loader]

    expected = batches()
    apply(**change)
    for found, before in zip(batches(), expected, strict=True):
        assert torch.equal(found[0], before[0])
        assert torch.equal(found[1], before[1])


HALVES = ([0, 1], [2, 3])


def test_a_data_set_that_is_only_evaluated_needs_no_list_of_transforms(apply, numbers):
    apply(cache="fixed")
    assert len(list(DataLoader(numbers(), 4))) == 16


def test_a_data_set_without_transforms_is_refused(apply, numbers):
    apply(cache="fixed")
    with pytest.raises(ValueError, match="the dataset has no list of transforms"):
        DataLoader(numbers(), 4, shuffle=True)


def test_a_file_is_decoded_when_the_loader_is_made(apply, tmp_path):
    path = tmp_path / "a.png"
    Image.new("L", (2, 2), 7).save(path)

    class Files(Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return Image.open(path).getpixel((0, 0))

    apply(cache="files")
    loader = DataLoader(Files(), 1)
    path.unlink()
    assert [batch.tolist() for batch in loader] == [[7]]


MOVABLE = ["Resize", "RandomHorizontalFlip", "ToTensor"]


@pytest.mark.parametrize(
    ("is_random", "transforms", "count"),
    [(True, MOVABLE, 1), (False, MOVABLE, 0), (True, [], 0), (True, ["ToTensor"], 0)],
)
def test_tried_if_random_transforms_can_be_moved(baseline, is_random, transforms, count):
    item = {"is_random": is_random, "transforms": transforms}
    assert len(AugmentBatches.candidates(baseline(item=item))) == count


class Images(Dataset):
    """Two pixels side by side; counts the items made."""

    def __init__(self, *transforms, count=4):
        self.transform = Compose([*transforms])
        self.count, self.made = count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.made += 1
        image = torch.tensor([[[index % 100, index % 100 + 100]]], dtype=torch.uint8)
        return self.transform(to_pil_image(image)), index


@pytest.mark.parametrize("steps", [[ToTensor(), RandomHorizontalFlip(1.0)], None])
def test_the_same_values_from_items_made_once(apply, steps):
    def make_dataset():
        plain = [RandomHorizontalFlip(1.0), ToTensor()]
        return Images(*(steps or plain), Normalize((0.5,), (0.25,)))

    (expected,) = DataLoader(make_dataset(), 4)
    apply(augment_batches="cpu")
    dataset = make_dataset()
    loader = DataLoader(dataset, 4)
    for _ in range(3):
        ((images, labels),) = loader
        assert torch.equal(images, expected[0])
        assert torch.equal(labels, expected[1])
        assert labels.dtype is expected[1].dtype
    assert dataset.made == 4


def test_each_image_draws_for_itself_unless_that_is_noted(apply):
    hooks = apply(augment_batches="cpu")
    loader = DataLoader(Images(RandomHorizontalFlip(), ToTensor(), count=256), 256)
    ((images, _),) = loader
    flipped = images[:, 0, 0, 0] > images[:, 0, 0, 1]
    assert 80 < flipped.sum() < 176
    assert hooks.notes == []
    list(DataLoader(Images(ColorJitter(hue=0.1), ToTensor()), 4))
    assert hooks.notes == ["ColorJitter uses the same random numbers for a whole batch"]


def test_a_data_set_without_random_transforms_is_refused(apply, numbers):
    apply(augment_batches="cpu")
    with pytest.raises(ValueError, match="the dataset has no random transforms"):
        DataLoader(numbers(), 4, shuffle=True)
