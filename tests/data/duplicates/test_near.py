"""Near-duplicates against planted copies of drawn scenes."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFilter, ImageOps

from onsight.data.duplicates.candidates import (
    BITS,
    MIRRORED,
    SortedLists,
    View,
    count_different_bits,
    frequencies,
    resize_to_planes,
)
from onsight.data.duplicates.comparison import align
from onsight.data.duplicates.near import connected_groups, find_near_duplicates
from onsight.data.fit import ImageFormat
from onsight.data.pack import Pack, open_pack
from onsight.data.packing import PackJob
from onsight.data.sources.find import find_source


def scene(seed: int, side: int = 160) -> Image.Image:
    """A drawing of coloured shapes on a shaded ground; no two seeds look alike."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 1, side)[:, None, None] * rng.integers(0, 120, 3)
    image = Image.fromarray(np.broadcast_to(ramp + 60, (side, side, 3)).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        left, top = rng.integers(0, side - 20, 2).tolist()
        width, height = rng.integers(15, 70, 2).tolist()
        colour = tuple(rng.integers(0, 255, 3).tolist())
        shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        shape((left, top, left + width, top + height), fill=colour)
    return image


def as_jpeg(image: Image.Image, quality: int = 70) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(io.BytesIO(file.getvalue()))


def cropped(image: Image.Image, share: float = 0.05) -> Image.Image:
    cut = int(share * image.width)
    return image.crop((cut, cut // 2, image.width, image.height - cut))


COPIES = {
    "resized": (lambda image: image.resize((70, 90), Image.Resampling.LANCZOS), "resized"),
    "encoded": (as_jpeg, "resized"),
    "cropped": (cropped, "cropped"),
    "one side": (lambda image: image.crop((0, 0, image.width - 10, image.height)), "cropped"),
    "mirrored": (ImageOps.mirror, "mirrored"),
}


def pack_of(folder: Path, images: dict[str, Image.Image]) -> Pack:
    (folder / "a").mkdir(parents=True)
    for name, image in images.items():
        image.save(folder / "a" / f"{name}.png")
    return open_pack(PackJob(find_source(str(folder)), ImageFormat(64, 64, 0)), None)


def found_in(pack: Pack) -> dict[tuple[str, ...], str]:
    names = [Path(locator).stem for locator in pack.index.locators]
    return {
        tuple(sorted((names[pair.first], names[pair.second]))): pair.kind
        for pair in find_near_duplicates(pack)
    }


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_found_and_nothing_else(tmp_path, how):
    change, kind = COPIES[how]
    scenes = {f"{seed:02d}": scene(seed) for seed in range(30)}
    copies = {f"{seed:02d}-copy": change(scene(seed)) for seed in range(8)}
    found = found_in(pack_of(tmp_path / "data", scenes | copies))
    assert set(found) == {(f"{seed:02d}", f"{seed:02d}-copy") for seed in range(8)}
    assert {description.partition(" ")[0] for description in found.values()} == {kind}


def test_one_changed_object_is_another_image(tmp_path):
    """Cards, flags and icons of a series share everything but a detail."""
    changed = scene(1)
    ImageDraw.Draw(changed).rectangle((60, 60, 85, 85), fill=(255, 255, 255))
    others = {f"{seed}": scene(seed) for seed in range(2, 12)}
    assert not found_in(pack_of(tmp_path / "data", {"a": scene(1), "b": changed} | others))


def test_a_glow_among_much_detail_is_another_image(tmp_path):
    """Its soft edge hides it from a comparison of detail."""
    pixels = np.random.default_rng(0).integers(0, 190, (20, 20, 3), np.uint8)
    pixels = np.kron(pixels, np.ones((8, 8, 1), np.uint8))
    away = np.linspace(-1, 1, 160)
    glow = 60 * np.exp(-8 * (away[:, None, None] ** 2 + away[None, :, None] ** 2))
    changed = (pixels + glow).astype(np.uint8)
    images = {"a": Image.fromarray(pixels), "b": Image.fromarray(changed)}
    assert not found_in(pack_of(tmp_path / "data", images))


def test_a_copy_of_a_image_without_detail_is_found(tmp_path):
    """What encoding leaves is as much as there is to see, in most of its frequencies too."""
    blurred = [scene(seed).filter(ImageFilter.GaussianBlur(30)) for seed in range(70)]
    images = {f"{seed:02d}": image for seed, image in enumerate(blurred)}
    copies = {f"{seed:02d}-copy": as_jpeg(blurred[seed], 60) for seed in range(8)}
    found = set(found_in(pack_of(tmp_path / "data", images | copies)))
    assert found == {(f"{seed:02d}", f"{seed:02d}-copy") for seed in range(8)}


def test_another_colour_is_another_image(tmp_path):
    red, green, blue = scene(1).split()
    recoloured = Image.merge("RGB", (blue, green, red))
    others = {f"{seed}": scene(seed) for seed in range(2, 12)}
    assert not found_in(pack_of(tmp_path / "data", {"a": scene(1), "b": recoloured} | others))


def test_flat_images_are_not_taken_for_each_other(tmp_path):
    ramps = {}
    for number in range(12):
        ramp = np.linspace(0, 100 + 10 * number, 64)[None, :, None]
        pixels = np.broadcast_to(ramp, (64, 64, 3)).astype(np.uint8)
        ramps[f"{number}"] = Image.fromarray(pixels)
    assert not found_in(pack_of(tmp_path / "data", ramps))


def test_identical_images_are_compared_once(tmp_path):
    images = {"a": scene(1), "b": scene(1), "c": as_jpeg(scene(1)), "d": scene(2)}
    assert len(found_in(pack_of(tmp_path / "data", images))) == 1


def test_grey_images(tmp_path):
    images = {f"{seed}": scene(seed).convert("L") for seed in range(10)}
    images["0-copy"] = as_jpeg(images["0"])
    assert set(found_in(pack_of(tmp_path / "data", images))) == {("0", "0-copy")}


def test_alignment_finds_a_known_scale_and_shift():
    """The oracle is the window that was cut."""
    image = torch.from_numpy(np.array(scene(3, 256))).unsqueeze(0)
    part = View(0.03, 0.05, 0.97, 0.99).of(image)
    found = align(resize_to_planes(image, 64).mean(1), resize_to_planes(part, 64).mean(1))[0]
    left, right, top, bottom = 0.05, 0.99, 0.03, 0.97
    expected = torch.tensor([right - left, left + right - 1, bottom - top, top + bottom - 1])
    assert (found - expected).abs().max() < 0.015


def test_frequencies_are_those_of_the_discrete_cosine_transform():
    fft = pytest.importorskip("scipy.fft")
    grey = torch.from_numpy(np.random.default_rng(0).random((1, 64, 64), np.float32))
    scaled = F.interpolate(grey[None], (32, 32), mode="bilinear", antialias=True)[0, 0]
    spectrum = fft.dctn(scaled.double().numpy(), norm=None) / 4
    expected = [spectrum[0, 1], spectrum[1, 0], spectrum[0, 2], spectrum[1, 1], spectrum[2, 0]]
    assert np.allclose(frequencies(grey)[0, :5], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("view", [MIRRORED, View(0.1, 0.0, 1.0, 0.9)])
def test_frequencies_of_a_view_are_those_of_what_it_shows(view):
    fft = pytest.importorskip("scipy.fft")
    grey = torch.from_numpy(np.random.default_rng(0).random((1, 64, 64), np.float32))
    shown = view.of(grey.unsqueeze(3))[..., 0]
    scaled = F.interpolate(shown[None], (32, 32), mode="bilinear", antialias=True)[0, 0]
    spectrum = fft.dctn(scaled.double().numpy(), norm=None) / 4
    expected = [spectrum[0, 1], spectrum[1, 0], spectrum[0, 2], spectrum[1, 1], spectrum[2, 0]]
    assert np.allclose(frequencies(grey, view)[0, :5], expected, rtol=1e-4, atol=1e-3)


def test_a_mirrored_view_is_the_mirror_image():
    images = torch.arange(24, dtype=torch.uint8).reshape(1, 2, 4, 3)
    assert torch.equal(MIRRORED.of(images), images.flip(2))


def test_sorted_lists_find_signatures_that_differ_in_few_bits():
    rng = np.random.default_rng(0)
    bits = rng.random((4000, BITS)) < 0.5
    queries = bits.copy()
    for row in range(len(queries)):
        queries[row, rng.permutation(BITS)[:8]] ^= True
    shuffled = rng.permutation(len(bits))
    lists = SortedLists(np.packbits(bits[shuffled], axis=1))
    found = {tuple(pair) for pair in lists.find_similar(np.packbits(queries, axis=1), 0).tolist()}
    place = np.argsort(shuffled)
    wanted = {(row, int(place[row])) for row in range(len(bits)) if row != place[row]}
    assert len(wanted & found) >= 0.99 * len(wanted)
    assert len(found - wanted) < 0.01 * len(wanted)  # unrelated ones differ too much


def test_different_bits_are_counted():
    first = np.array([[0] * 12, [255] * 12], np.uint8)
    second = np.array([[0] * 11 + [7], [0] * 12], np.uint8)
    assert count_different_bits(first, second).tolist() == [3, 96]


def test_groups_are_what_pairs_connect():
    assert connected_groups(6, [(4, 2), (2, 0), (5, 3)]).tolist() == [0, 1, 0, 3, 0, 3]
