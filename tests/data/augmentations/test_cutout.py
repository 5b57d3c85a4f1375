"""Oracle: the area of a box that is cut off at the edges."""

import torch

from onsight.data.augmentation_ops import CUT_X, CUT_Y, Cutout
from onsight.randomness import uniform


def test_a_box_of_its_share_around_the_drawn_centre_is_blanked():
    cutout, count = Cutout(0.4), 100
    numbers = uniform(0, 0, torch.arange(count), cutout.columns).unbind(1)
    drawn = dict(zip(cutout.columns, numbers, strict=True))
    changed = cutout.apply(torch.full((count, 2, 100, 100), 3.0), drawn)
    for number in range(count):
        y, x = drawn[CUT_Y][number].item(), drawn[CUT_X][number].item()
        area = (min(1, y + 0.2) - max(0, y - 0.2)) * (min(1, x + 0.2) - max(0, x - 0.2))
        blank = changed[number] == 0
        assert abs(blank.double().mean() - area) < 0.01
        assert blank[:, int(100 * y), int(100 * x)].all()
        assert (changed[number][~blank] == 3).all()
