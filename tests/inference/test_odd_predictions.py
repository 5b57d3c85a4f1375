"""Over 200 pictures of every mode, format and orientation: `eval` and `predict` say the same."""

import csv
import io

import numpy as np
import pytest
from PIL import Image

from onsight.cli import main

MODES = {
    "JPEG": ("L", "RGB", "CMYK"),
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "TIFF": ("1", "L", "P", "RGB", "RGBA", "CMYK", "I;16"),
    "WEBP": ("RGB", "RGBA"),
    "BMP": ("1", "L", "P", "RGB"),
    "GIF": ("L", "P", "RGB"),
}
TURNED = ("JPEG", "PNG", "TIFF", "WEBP")
ORIENTATION = 0x0112


def odd_files():
    """(name, bytes): a bar across or down in noise, stored in all of these ways."""
    rng = np.random.default_rng(4)
    for kind, modes in MODES.items():
        for mode in modes:
            for turn in range(1, 9):
                exif = Image.Exif()
                exif[ORIENTATION] = turn
                options = {"exif": exif} if kind in TURNED else {}
                file = io.BytesIO()
                _image(mode, rng).save(file, kind, **options)
                yield f"{kind}-{mode.replace(';', '-')}-{turn}.bin", file.getvalue()


def _image(mode, rng):
    height, width = rng.integers(9, 30, 2)
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 2**16, (height, width), np.uint16))
    pixels = rng.integers(0, 90, (height, width, 4), np.uint8)
    pixels[height // 2] = 255
    return Image.fromarray(pixels).convert("RGB" if mode == "CMYK" else mode).convert(mode)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    for number, (name, data) in enumerate(odd_files()):
        place = folder / ("across", "down")[number % 2]
        place.mkdir(exist_ok=True)
        (place / name).write_bytes(data)
    return folder


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_evaluation_and_prediction_of_odd_pictures_are_equal(trained, odd, tmp_path):
    evaluated, predicted = tmp_path / "eval.csv", tmp_path / "predict.csv"
    for words in (["eval", "--csv", evaluated], ["predict", "--csv", predicted]):
        name, *more = words
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in (name, trained.path, odd, *more)])
        assert stop.value.code == 0
    expected = {str(odd / row["path"]): row for row in rows_of(evaluated)}
    found = {row["path"]: row for row in rows_of(predicted)}
    assert len(expected) == len(found) >= 200
    for path, row in expected.items():
        same = found[path]
        assert same["problem"] == ""
        assert (same["predicted"], same["probability"]) == (row["predicted"], row["probability"])
    assert len({row["probability"] for row in found.values()}) > 100
