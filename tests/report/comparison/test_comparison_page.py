"""The page of a comparison: the right images in the right order, and nothing from outside."""

import base64
import io
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from planted_runs import plant_counts, plant_run, said

import onsight
from onsight.data.decode import pixel_digest
from onsight.report.run_files import digest_text


@pytest.fixture
def pets(tmp_path):
    """A folder of 70 small images of two classes, and the digest of each path."""
    rng = np.random.default_rng(1)
    digests = {}
    for number in range(70):
        label = ("cat", "dog")[number % 2]
        path = tmp_path / "pets" / label / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (12, 12, 1), np.uint8)
        Image.fromarray(pixels[:, :, 0]).save(path)
        digests[f"{label}/{path.name}"] = digest_text(pixel_digest(pixels))
    return digests


def plant_opposites(folder, digests):
    """Two runs that never agree: the first is always right, ever surer."""
    runs = []
    for name, right in (("right", True), ("wrong", False)):
        rows = []
        for number, (path, digest) in enumerate(digests.items()):
            label = path.partition("/")[0]
            predicted = label if right else {"cat": "dog", "dog": "cat"}[label]
            row = said(number, label, predicted, 0.5 + number / 200)
            rows.append(row._replace(path=path, digest=digest))
        runs.append(plant_run(folder / name, rows))
    return runs


def page_of(runs, folder):
    return onsight.compare(*runs).save_page(folder / "page.html").read_text(encoding="utf-8")


def pixels_in(page):
    texts = re.findall(r'<img src="data:image/png;base64,([^"]+)" class="tiny"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in texts]


def test_the_surest_disagreements_come_first_with_their_own_pixels(pets, tmp_path):
    page = page_of(plant_opposites(tmp_path, pets), tmp_path)
    shown = pixels_in(page)
    expected = [tmp_path / "pets" / path for path in reversed(pets)][:60]
    assert len(shown) == 60
    for pixels, path in zip(shown, expected, strict=True):
        assert np.array_equal(pixels, np.asarray(Image.open(path)))
    assert "60 of 70; the other 10 are not shown." in page


def test_a_page_says_what_each_run_said_and_who_was_right(pets, tmp_path):
    page = page_of(plant_opposites(tmp_path, pets), tmp_path)
    first = page.partition('<ul class="gallery">')[2].partition("</li>")[0]
    assert "<b>dog</b>" in first
    assert '<span class="right">✓ dog</span> <small>84.5%</small>' in first
    assert '<span class="wrong">✗ cat</span> <small>84.5%</small>' in first


def test_a_page_loads_nothing_and_runs_nothing(pets, tmp_path):
    page = page_of(plant_opposites(tmp_path, pets), tmp_path)
    assert "default-src 'none'" in page
    assert "<script" not in page
    for address in re.findall(r'(?:src|href)="([^"]*)"', page):
        assert address.startswith("data:")


def test_images_that_are_gone_or_changed_are_not_shown(pets, tmp_path):
    runs = plant_opposites(tmp_path, pets)
    paths = [tmp_path / "pets" / path for path in pets]
    paths[-1].unlink()
    Image.fromarray(np.zeros((12, 12), np.uint8)).save(paths[-2])
    page = page_of(runs, tmp_path)
    assert len(pixels_in(page)) == 58
    assert page.count("not available</span>") == 2
    shutil.rmtree(tmp_path / "pets")
    page = page_of(runs, tmp_path)
    assert "The images are not available" in page
    assert page.count("<li>\n<p><b>") == 60


def test_a_named_set_that_is_not_here_is_not_downloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("ONSIGHT_DATA", str(tmp_path / "sets"))
    monkeypatch.setattr(
        "onsight.data.sources.named._fetch", lambda *_: pytest.fail("it was downloaded")
    )
    runs = [
        plant_run(tmp_path / name, [said(1, "cat", name)], data="cifar10")
        for name in ("cat", "dog")
    ]
    assert "The images are not available" in page_of(runs, tmp_path)


def test_runs_that_agree_have_no_images_to_show(tmp_path):
    page = page_of(plant_counts(tmp_path, 5, 0, 0, 2), tmp_path)
    assert "The runs predicted the same class for every image." in page


def test_names_are_escaped(tmp_path):
    classes = ("<b>", "dog")
    runs = [
        plant_run(tmp_path / name, [said(1, "<b>", said_so)], classes=classes)
        for name, said_so in (("<i>one", "<b>"), ("two", "dog"))
    ]
    page = page_of(runs, tmp_path)
    assert "<i>" not in page
    assert "&lt;b&gt;" in page


def test_an_own_page_is_replaced(pets, tmp_path):
    runs = plant_opposites(tmp_path, pets)
    assert page_of(runs, tmp_path) == page_of(runs, tmp_path)
