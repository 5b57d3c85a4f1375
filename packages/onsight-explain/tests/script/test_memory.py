"""Items and files kept in memory: the same values, made only once."""

import random
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset

from onsight_explain.process.items import examine_items
from onsight_explain.script.memory import CachedFiles, CachedItems, base_dataset


class Counted(Dataset):
    """Squares; records each item made. transform: as in torchvision's data sets."""

    classes = ("a", "b")

    def __init__(self, count=10, transform=None):
        self.count, self.made, self.transform = count, [], transform

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.made.append(index)
        value = torch.tensor(float(index * index))
        return (self.transform(value) if self.transform else value), index


def test_kept_items_are_those_of_the_dataset_and_made_once():
    dataset = Counted()
    kept = CachedItems(Subset(dataset, [3, 5, 7]))
    for _ in range(3):
        batches = [batch[0].tolist() for batch in DataLoader(kept, batch_size=2)]
        assert batches == [[9.0, 25.0], [49.0]]
    assert sorted(dataset.made) == [3, 5, 7]
    assert kept.is_whole
    assert kept.dataset.dataset.classes == ("a", "b")


def test_if_time_is_short_a_random_part_is_kept():
    kept = CachedItems(Counted(1000), max_seconds=-1.0)
    assert (len(kept), kept.is_whole) == (1, False)
    assert kept[0][1] > 10  # not the first item, since a data set may be sorted by class


def test_filling_does_not_change_the_random_numbers_of_the_script():
    def numbers():
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = numbers()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    CachedItems(
        Counted(transform=lambda x: x + random.random() + np.random.rand() + torch.rand(()))
    )
    assert numbers() == expected


def test_a_file_is_decoded_once_and_every_caller_gets_its_own_image(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).save(path)
    decoded = []
    open_cached = CachedFiles().caching(lambda *args: decoded.append(args) or Image.open(*args))
    one = open_cached(path)
    with path.open("rb") as file:  # as torchvision opens it
        other = open_cached(file)
    one.putpixel((0, 0), 99)
    assert other.getpixel((0, 0)) == 0
    assert len(decoded) == 1


def test_the_dataset_with_the_transform_is_found_inside_subsets():
    inner = Counted(transform=lambda x: x)
    assert base_dataset(Subset(Subset(inner, range(5)), range(3))) is inner


def chance(value):
    return value + torch.rand(())


@pytest.mark.parametrize(("transform", "is_random"), [(None, False), (chance, True)])
def test_random_items_are_distinguished_from_fixed_ones(transform, is_random):
    facts = examine_items(Counted(transform=transform))
    assert facts.is_random is is_random
    assert facts.item_bytes == 4


def test_the_shares_of_transforms_and_of_waiting_are_measured(long_sleeps):
    asleep = examine_items(Counted(transform=lambda x: time.sleep(0.004) or x))
    assert asleep.transform_share > 0.9
    assert asleep.waiting_share > 0.5

    def work(x):
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        return x

    assert examine_items(Counted(transform=work)).waiting_share == 0.0


def test_a_dataset_without_numbered_items_is_not_examined():
    assert examine_items(iter([1, 2])) is None
