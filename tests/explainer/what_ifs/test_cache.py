"""Work that is done once and kept."""

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose

from onsight.explainer.what_ifs.cache import Cache


@pytest.mark.parametrize(
    ("is_random", "waits", "values"),
    [(False, 0.5, ["items"]), (True, 0.5, ["files", "fixed"]), (False, 0.0, [])],
)
def test_random_items_are_not_kept_whole(seen, is_random, waits, values):
    found = Cache.worth(seen(item={"is_random": is_random}, waits=waits))
    assert [one.value for one in found] == values


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


def test_a_data_set_without_transforms_is_refused(apply, numbers):
    apply(cache="fixed")
    with pytest.raises(ValueError, match="the data set has no list of transforms"):
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
