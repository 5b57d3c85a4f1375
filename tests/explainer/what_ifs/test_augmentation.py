"""Random transforms applied to batches."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose, RandomHorizontalFlip, ToTensor
from torchvision.transforms.functional import to_pil_image

from onsight.explainer.what_ifs.augmentation import AugmentBatches


@pytest.mark.parametrize(("is_random", "count"), [(True, 1), (False, 0)])
def test_tried_if_items_are_random(seen, is_random, count):
    assert len(AugmentBatches.worth(seen(item={"is_random": is_random}))) == count


class Pictures(Dataset):
    """Two pixels side by side, always flipped."""

    def __init__(self):
        self.transform = Compose([RandomHorizontalFlip(1.0), ToTensor()])

    def __len__(self):
        return 4

    def __getitem__(self, index):
        picture = torch.tensor([[[index, index + 100]]], dtype=torch.uint8)
        return self.transform(to_pil_image(picture)), index


@pytest.mark.parametrize("others", [{}, {"cache": "fixed"}])
def test_random_transforms_move_to_the_batch(apply, others):
    (expected,) = [x for x, _ in DataLoader(Pictures(), 4)]
    apply(augment_batches=True, **others)
    dataset = Pictures()
    (images,) = [x for x, _ in DataLoader(dataset, 4)]
    assert torch.equal(images, expected)
    assert not torch.equal(dataset[0][0], expected[0])  # the item itself is no longer flipped


def test_a_data_set_without_random_transforms_is_refused(apply, numbers):
    apply(augment_batches=True)
    with pytest.raises(ValueError, match="the data set has no random transforms"):
        DataLoader(numbers(), 4, shuffle=True)
