"""Random transforms applied to batches of kept items."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import ColorJitter, Compose, Normalize, RandomHorizontalFlip, ToTensor
from torchvision.transforms.functional import to_pil_image

from onsight_explain.what_ifs.augmentation import AugmentBatches

MOVABLE = ["Resize", "RandomHorizontalFlip", "ToTensor"]


@pytest.mark.parametrize(
    ("is_random", "transforms", "count"),
    [(True, MOVABLE, 1), (False, MOVABLE, 0), (True, [], 0), (True, ["ToTensor"], 0)],
)
def test_tried_if_random_transforms_can_be_moved(seen, is_random, transforms, count):
    item = {"is_random": is_random, "transforms": transforms}
    assert len(AugmentBatches.worth(seen(item=item))) == count


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
    assert hooks.notes == ["ColorJitter draws once for a whole batch"]


def test_a_data_set_without_random_transforms_is_refused(apply, numbers):
    apply(augment_batches="cpu")
    with pytest.raises(ValueError, match="the data set has no random transforms"):
        DataLoader(numbers(), 4, shuffle=True)
