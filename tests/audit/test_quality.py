"""Poor images planted among sharp photographs."""

import numpy as np
import pytest
from PIL import Image, ImageFilter

import onsight
from onsight.report.console import SilentReporter


def photo(seed: int, side: int = 120) -> Image.Image:
    """Noise at every scale: sharp, and hardly ever flat."""
    rng = np.random.default_rng(seed)
    pixels = np.zeros((side, side, 3))
    for coarse in (6, 24, side):
        noise = Image.fromarray(rng.integers(0, 255, (coarse, coarse, 3), np.uint8))
        pixels += np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC)) / 3
    return Image.fromarray(pixels.astype(np.uint8))


def screenshot() -> Image.Image:
    image = Image.new("RGB", (120, 120), (240, 240, 240))
    image.paste((30, 60, 200), (10, 10, 90, 30))
    image.paste((0, 0, 0), (10, 60, 60, 64))
    return image


POOR = {
    "blurred": photo(900).filter(ImageFilter.GaussianBlur(12)),
    "a screenshot or drawing": screenshot(),
    "small": photo(901, 20),
    "odd shape": photo(902).resize((480, 120)),
    "very dark": photo(903).point(lambda value: max(0, 3 * value // 10 - 14)),
    "very bright": photo(904).point(lambda value: 205 + 3 * value // 10),
    "nearly blank": Image.new("RGB", (120, 120), (90, 90, 90)),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    data = tmp_path_factory.mktemp("quality") / "data"
    for number in range(40):
        place = data / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        photo(number).save(place / f"{number}.png")
    for name, image in POOR.items():
        image.save(data / "a" / f"{name}.png")
    audit = onsight.check(data, quick=True, reporter=SilentReporter())
    return {
        (finding.items[0].path, finding.description.partition(" (")[0])
        for finding in audit.of("quality")
    }


@pytest.mark.parametrize("name", POOR)
def test_a_poor_image_is_found(found, name):
    descriptions = {what for path, what in found if path == f"a/{name}.png"}
    assert any(what.startswith(name) for what in descriptions)


def test_sharp_images_are_not(found):
    assert {path for path, _ in found} == {f"a/{name}.png" for name in POOR}
