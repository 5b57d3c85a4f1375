"""All augmentations together: what each draws, and what becomes of a batch."""

import pytest
import torch
from augmented import augment

from onsight.config import step_time_fields
from onsight.data.augment import SETTINGS, Augmentation
from onsight.data.augmentation_ops import NEXT_FREE_COLUMN
from onsight.data.loader import Batch
from onsight.data.normalization import Normalization

ALL = {
    "flip": True,
    "translate": 0.1,
    "crop_area": 0.5,
    "rotate_degrees": 20.0,
    "jitter": 0.3,
    "cutout": 0.3,
    "mixup": 0.4,
    "cutmix": 0.4,
}
MIXING = {"mixup", "cutmix"}
NORMALIZATION = Normalization((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))


def images(count=6, height=9, width=12):
    return torch.randint(0, 256, (count, height, width, 3), dtype=torch.uint8)


def batch_of(images):
    count = len(images)
    labels = torch.arange(count) % 3
    return Batch(images, labels, torch.arange(count) + 50, labels)


def test_every_setting_is_a_field_of_the_config_and_tested_here():
    assert ALL.keys() | {"input_size"} == SETTINGS
    assert ALL.keys() < set(step_time_fields())


def test_no_column_is_shared_and_none_ever_changes():
    columns = Augmentation.of(**ALL).columns
    # another number would change what every training sees
    assert sorted(columns) == list(range(NEXT_FREE_COLUMN))
    assert Augmentation.of(flip=True).columns == [0, 1, 2]
    assert Augmentation.of(jitter=0.1).columns == [8, 9, 10]
    assert Augmentation.of(cutout=0.1).columns == [11, 12]
    assert Augmentation.of(cutmix=0.1).columns == list(range(13, 48))


def test_an_unknown_setting_is_refused():
    with pytest.raises(TypeError, match="no augmentation setting is called twirl"):
        Augmentation.of(flip=True, twirl=0.5)


@pytest.mark.parametrize("name", sorted(ALL.keys() - MIXING))
def test_each_change_depends_on_the_image_alone_and_changes_with_the_epoch(name):
    batch, augmentation = batch_of(images(12, 12, 12)), Augmentation.of(**{name: ALL[name]})

    def augmented(part, epoch):
        return augment(augmentation, part, 7, epoch, NORMALIZATION, 3)[0]

    whole = augmented(batch, 1)
    neighbours = batch_of(images(12, 12, 12))._replace(ids=torch.arange(12) + 90)
    between = [column.clone() for column in neighbours[:4]]
    for column, own in zip(between, batch[:4], strict=True):
        column[::2] = own[::2]
    assert torch.equal(augmented(Batch(*between), 1)[::2], whole[::2])
    parts = [augmented(Batch(*(t[i : i + 1] for t in batch[:4])), 1) for i in range(12)]
    assert torch.allclose(whole, torch.cat(parts), atol=1e-3)  # 0.05 grey values: rounding
    assert not torch.equal(whole, augmented(batch, 2))
    assert torch.equal(whole, augmented(batch, 1))


def test_nothing_asked_is_plain_normalization():
    batch = batch_of(images())
    inputs, targets = augment(Augmentation.of(), batch, 0, 0, NORMALIZATION, 3)
    expected = (
        batch.images.permute(0, 3, 1, 2) / 255.0 - torch.tensor(NORMALIZATION.mean).view(1, 3, 1, 1)
    ) / torch.tensor(NORMALIZATION.std).view(1, 3, 1, 1)
    assert torch.equal(inputs, expected)
    assert torch.equal(targets, batch.labels)


def test_everything_together_keeps_shape_and_stays_finite():
    batch = batch_of(images(8, 20, 14))
    inputs, targets = augment(Augmentation.of(**ALL), batch, 0, 0, NORMALIZATION, 3)
    assert inputs.shape == (7, 3, 20, 14)  # the last image is only a partner
    assert targets.shape == (7, 3)
    assert inputs.isfinite().all()
