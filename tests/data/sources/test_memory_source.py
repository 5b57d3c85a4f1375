"""Oracle: the same images saved as PNGs in class folders."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Normalize, RandomCrop, ToTensor

from onsight.data.fit import ImageFormat
from onsight.data.pack import open_pack
from onsight.data.packing import PackJob
from onsight.data.sources.find import find_source, resolve_data
from onsight.data.sources.memory import read_memory_data
from onsight.data.sources.source import is_memory_name
from onsight.errors import DataError

TARGET = ImageFormat(6, 5, 0, background=(10, 200, 30))
RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (12, 6, 5), np.uint8)
COLOUR = RNG.integers(0, 256, (12, 6, 5, 3), np.uint8)
CLEAR = RNG.integers(0, 256, (12, 6, 5, 4), np.uint8)
NAMES = ["cat", "dog", "owl"] * 4


class Items(Dataset):
    """A Dataset of given items; an error among them is raised."""

    def __init__(self, items):
        self.items = items
        self.reads = []

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        self.reads.append(number)
        item = self.items[number]
        if isinstance(item, Exception):
            raise item
        return item


class Flow(IterableDataset):
    """A Dataset without a length."""

    def __iter__(self):
        return iter([(GREY[0], 0)])


def pack_of(source):
    return open_pack(PackJob(source, TARGET), None)


def save(arrays, folder):
    """The arrays as PNGs in class folders."""
    paths = []
    for number, (array, name) in enumerate(zip(arrays, NAMES, strict=True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        paths.append(folder / name / f"{number}.png")
        Image.fromarray(array).save(paths[-1])
    return paths


def first(arrays):
    """Channels first, as tensors."""
    tensors = torch.from_numpy(arrays)
    return tensors.permute(0, 3, 1, 2) if tensors.ndim == 4 else tensors[:, None]


@pytest.mark.parametrize("arrays", [GREY, COLOUR, CLEAR], ids=["grey", "colour", "clear"])
def test_every_form_gives_the_pixels_digests_and_labels_of_the_folder(arrays, tmp_path):
    paths = save(arrays, tmp_path)
    images = [Image.fromarray(array) for array in arrays]
    scaled, mixed = arrays / np.float32(255), [*images[:6], *arrays[6:9], *paths[9:]]
    forms = [(many, NAMES) for many in (arrays, list(arrays), images, paths, scaled, mixed)]
    forms += [(np.array([str(path) for path in paths]), np.array(NAMES)), (first(arrays), NAMES)]
    forms += [list(zip(images, NAMES, strict=True)), Items(list(zip(arrays, NAMES, strict=True)))]
    forms += [Items(list(zip(paths, NAMES, strict=True)))]
    expected = pack_of(find_source(str(tmp_path)))
    for form in forms:
        pack = pack_of(read_memory_data(form))
        assert np.array_equal(pack.digests, expected.digests)
        assert np.array_equal(pack.pixels[pack.rows], expected.pixels[expected.rows])
        assert np.array_equal(pack.index.labels, expected.index.labels)
        assert pack.index.classes == expected.index.classes
        assert not pack.problems


def test_whole_numbers_are_ordered_by_size_and_words_by_letter():
    labels = [10, 9, 2] * 4
    for given in (labels, np.array(labels, np.uint8), torch.tensor(labels)):
        index = read_memory_data((GREY, given)).index
        assert index.classes == ("2", "9", "10")
        assert [index.classes[label] for label in index.labels] == [str(label) for label in labels]
    assert read_memory_data((GREY, list(map(str, labels)))).index.classes == ("10", "2", "9")
    assert read_memory_data((GREY, np.array(labels) > 5)).index.classes == ("False", "True")


def test_torchs_own_datasets_work(tmp_path):
    save(COLOUR, tmp_path)
    numbers = torch.tensor([0, 1, 2] * 4)
    expected = pack_of(find_source(str(tmp_path))).digests
    for data in (
        ImageFolder(str(tmp_path)),
        ImageFolder(str(tmp_path), transform=ToTensor()),
        TensorDataset(first(COLOUR), numbers),
    ):
        source = read_memory_data(data)
        assert np.array_equal(pack_of(source).digests, expected)
        assert source.index.classes == ("0", "1", "2")
        assert source.description == f"{type(data).__name__} in memory, 3 classes, 12 images"
    subset = read_memory_data(Subset(TensorDataset(first(COLOUR), numbers), range(7)))
    assert str(subset.root) == "Subset in memory (7)"
    assert is_memory_name("Subset in memory (1,007)")
    assert not is_memory_name(str(tmp_path))


def test_each_item_is_read_once_but_for_the_first():
    data = Items([(array, name) for array, name in zip(GREY, NAMES, strict=True)])
    source = read_memory_data(data)
    pack_of(source)
    assert sorted(data.reads) == [0, 0, 0, *range(1, 12)]
    assert source.notes == []


def test_a_random_transform_is_noticed(tmp_path):
    save(COLOUR, tmp_path)
    torch.manual_seed(0)
    source = read_memory_data(ImageFolder(str(tmp_path), transform=RandomCrop(3)))
    (note,) = source.notes
    assert "random" in note


def test_the_fingerprint_is_that_of_the_content(tmp_path):
    base = read_memory_data((GREY, NAMES)).fingerprint
    assert read_memory_data((GREY.copy(), NAMES)).fingerprint == base
    assert read_memory_data((list(GREY), np.array(NAMES))).fingerprint == base
    changed = GREY.copy()
    changed[11, 5, 4] ^= 1
    others = [(changed, NAMES), (GREY, [*NAMES[:-1], "cat"]), (GREY[::-1], NAMES)]
    paths = save(GREY, tmp_path)
    others.append((paths, NAMES))
    marks = {read_memory_data(other).fingerprint for other in others}
    assert len(marks | {base}) == 5
    Image.fromarray(changed[11][:3]).save(paths[11])
    assert read_memory_data((paths, NAMES)).fingerprint not in marks


def test_broken_images_are_listed_and_the_rest_is_used(tmp_path):
    paths = save(GREY, tmp_path)
    paths[3].write_bytes(b"no image")
    paths[4].unlink()
    closed = Image.open(paths[0])
    closed.close()
    pair = read_memory_data(([closed, *paths[1:]], NAMES))
    pack = pack_of(pair)
    assert [problem.path for problem in pair.problems] == ["item 0"]
    assert {problem.path for problem in pack.problems} == {str(paths[3]), str(paths[4])}
    assert len(pack) == 9
    items = Items([(GREY[0], 0), OSError("truncated"), (GREY[1], 1)])
    (problem,) = read_memory_data(items).problems
    assert problem == ("item 1", "scan", "OSError: truncated")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ((GREY, NAMES[:-1]), "there are 12 images, but 11 labels"),
        (([], []), "there are no images"),
        ((GREY, NAMES, NAMES), "a tuple of 3 is not DATA: give a path, a pair"),
        (("folder", NAMES), "a str is not several images"),
        ((GREY, "cat"), "the labels are a str"),
        ((iter(GREY), NAMES), "is not several images"),
        ((GREY.reshape(12, 30), NAMES), r"shape \(12, 30\) are rows .* images.reshape\(n, H, W\)"),
        ((COLOUR[None], NAMES), "are not"),
        ((GREY.astype(float), NAMES), "item 0: has floats from .* to 2.., but"),
        ((GREY.astype(int), NAMES), "item 0: an array of int64"),
        (([GREY[0], GREY[1] / 255], NAMES[:2]), "item 1 is float64, but those before it are uint8"),
        (([GREY[0], None], NAMES[:2]), "item 1: a NoneType is not an image"),
        ((GREY[:2], [1, None]), "the label of item 1 must be .* not None; leave unlabelled"),
        ((GREY[:2], [1, float("nan")]), "not nan; leave unlabelled"),
        ((GREY[:2], [1, 1.5]), "not 1.5, a float"),
        ((GREY[:2], [1, "1"]), "is '1', of type str, but those before it are of type int"),
        ((GREY[:2], np.eye(2)), "argmax"),
        (GREY, "a ndarray is not DATA"),
        ({"a": 1}, "a dict is not DATA"),
        (7, "a int is not DATA"),
        (DataLoader(Items([(GREY[0], 0)])), "loader.dataset"),
        (Flow(), "Flow is not DATA"),
        (Items([]), "no usable images in the .* in memory"),
        (Items([ValueError("no such file")]), "item 0: ValueError: no such file"),
        (Items([{"image": GREY[0], "label": 0}]), r"item 0 of the Items is not a pair"),
        (Items([(GREY[0], None)]), "the label of item 0"),
    ],
)
def test_what_cannot_be_data_is_refused(data, reason):
    with pytest.raises(DataError, match=reason):
        resolve_data(data)


def test_a_normalized_dataset_is_refused(tmp_path):
    save(COLOUR, tmp_path)
    transform = Compose([ToTensor(), Normalize([0.5] * 3, [0.5] * 3)])
    with pytest.raises(DataError, match="Onsight normalizes by itself"):
        read_memory_data(ImageFolder(str(tmp_path), transform=transform))


def test_names_stay_names_and_an_open_source_stays_open(tmp_path):
    assert resolve_data("demo") == "demo"
    assert resolve_data(tmp_path) == str(tmp_path)
    source = read_memory_data((GREY, NAMES))
    assert find_source(source) is source
