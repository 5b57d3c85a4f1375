"""Heat over images. Oracles: Pillow's own fitting, and areas counted by hand."""

import numpy as np
import pytest

from onsight.data.fit import ImageFormat, fit
from onsight.heatmaps.overlay import enlarge, hottest_area, map_to_original, overlay


def blob(height, width, row, column):
    """A round hot place: float32 (H, W), 0 to 1."""
    rows, columns = np.mgrid[:height, :width]
    return np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / 20).astype(np.float32)


@pytest.mark.parametrize("channels", [1, 3])
def test_hot_is_light_and_cold_is_the_image_dimmed(channels):
    pixels = np.full((40, 60, channels), 100, np.uint8)
    drawn = overlay(pixels, blob(40, 60, 10, 20))
    assert (drawn.shape, drawn.dtype) == ((40, 60, 3), np.uint8)
    assert (drawn[35, 55] == 60).all()
    assert drawn[10, 20].mean() > 120
    assert (pixels == 100).all()


def test_a_line_can_be_seen_on_black_and_on_white():
    for shade in (0, 255):
        drawn = overlay(np.full((40, 60, 3), shade, np.uint8), blob(40, 60, 20, 30))
        grey = drawn.astype(int).mean(axis=2)[20]  # across the hot place
        assert (np.abs(np.diff(grey)) == 255).sum() == 2


def test_the_line_is_around_the_smallest_area_with_80_percent():
    heat = np.zeros((4, 5), np.float32)
    heat[0, :4] = [4, 3, 2, 1]
    assert hottest_area(heat).sum() == 3  # 9 of 10; 7 would be too few
    assert hottest_area(heat, 0.7).sum() == 2
    assert not hottest_area(np.zeros((4, 5), np.float32)).any()


def test_a_image_without_heat_is_drawn_without_a_line():
    assert (overlay(np.full((8, 8, 1), 100, np.uint8), np.zeros((8, 8), np.float32)) == 60).all()


def test_small_images_grow_in_whole_pixels():
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4, 1)
    grown, heat = enlarge(pixels, blob(3, 4, 1, 1), 10)
    assert grown.shape == (9, 12, 1)
    assert heat.shape == (9, 12)
    assert np.array_equal(grown[1::3, 1::3], pixels)
    same, _ = enlarge(np.zeros((30, 40, 3), np.uint8), blob(30, 40, 1, 1), 10)
    assert same.shape == (30, 40, 3)


@pytest.mark.parametrize("size", [(60, 120), (130, 50), (64, 64)])
@pytest.mark.parametrize("how", ["stretch", "crop", "pad"])
def test_heat_comes_back_to_where_the_image_had_it(size, how):
    """A bright place of the original, fitted as images are, must be hot in the same place."""
    height, width = size
    row, column = height // 2 + 6, width // 2 - 6
    original = (255 * blob(height, width, row, column)).astype(np.uint8)[:, :, np.newaxis]
    target = ImageFormat(64, 64, 1, fit=how, background=(0, 0, 0))
    heat = fit(original, target)[:, :, 0].astype(np.float32) / 255
    back = map_to_original(heat, size, how)
    assert back.shape == size
    found = np.unravel_index(back.argmax(), size)
    assert np.abs(np.subtract(found, (row, column))).max() <= 2


def test_what_a_crop_cut_off_is_cold():
    back = map_to_original(np.ones((10, 10), np.float32), (20, 60), "crop")
    assert back[:, 20:40].all()
    assert not back[:, :20].any()
    assert not back[:, 40:].any()
