"""The grid of predictions: the stored pixels, the words below them, and which are wrong."""

import json
import unicodedata
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from PIL import Image

from onsight.cli import main
from onsight.data.fit import ImageFormat
from onsight.errors import OutputError
from onsight.inference.grid import check_grid_name, save_grid
from onsight.inference.images import file_input
from onsight.inference.predictor import Prediction
from onsight.report.canvas import Canvas

PREDICTOR = SimpleNamespace(
    classes=("across", "down", "Füße"), format=ImageFormat(12, 12, 1, background=(255, 0, 0))
)
SIDE, CELL_WIDTH, CELL_HEIGHT, GAP = 168, 184, 235, 16


def plant(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return str(path)


def prediction(path, label="across", probability=0.875):
    return Prediction(path, label, probability, None, None)


def draw(path, predictions):
    save_grid(path, [(row, file_input(row.path)) for row in predictions], PREDICTOR)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 255, (height, width), np.uint8)


@pytest.fixture
def written(monkeypatch):
    """The words that are drawn, a list a tile."""
    tiles = {}
    write = Canvas.write

    def record(self, x, y, words):
        tiles.setdefault((y // CELL_HEIGHT, x // CELL_WIDTH), []).append(words.text)
        write(self, x, y, words)

    monkeypatch.setattr(Canvas, "write", record)
    return tiles


def pixels_of(path):
    """A grid's pixels (H, W, 3)."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def tile(path, row=0, column=0):
    """The pixels (168, 168, 3) of a tile of a grid."""
    x, y = GAP + column * CELL_WIDTH, GAP + row * CELL_HEIGHT
    return pixels_of(path)[y : y + SIDE, x : x + SIDE]


def test_small_images_are_enlarged_pixel_by_pixel_and_keep_their_order(tmp_path):
    images = [noise(12, 12, seed) for seed in range(7)]
    paths = [plant(tmp_path / "x" / f"{n}.png", pixels) for n, pixels in enumerate(images)]
    grid = tmp_path / "grid.png"
    draw(grid, [prediction(path) for path in paths])
    assert pixels_of(grid).shape == (2 * CELL_HEIGHT + GAP, 4 * CELL_WIDTH + GAP, 3)
    for number, pixels in enumerate(images):
        expected = np.repeat(np.repeat(pixels, 14, axis=0), 14, axis=1)
        found = tile(grid, *divmod(number, 4))[3:-3, 3:-3]
        assert (found == expected[3:-3, 3:-3, None]).all()


@pytest.mark.parametrize(
    ("shape", "height", "width"),
    [((1, 5), 33, 165), ((400, 200), 168, 84), ((100, 90), 100, 90), ((2, 2000), 1, 168)],
)
def test_the_shape_of_an_image_is_kept(tmp_path, shape, height, width):
    path = plant(tmp_path / "x" / "black.png", np.zeros(shape, np.uint8))
    draw(tmp_path / "grid.png", [prediction(path)])
    black = (tile(tmp_path / "grid.png") < 100).all(axis=2)
    found = black.any(axis=1).sum(), black.any(axis=0).sum()
    assert np.allclose(found, (height, width), atol=2)


@pytest.mark.parametrize(("count", "size"), [(1, (1, 1)), (2, (2, 1)), (7, (4, 2)), (64, (8, 8))])
def test_the_rows_and_columns_for_a_number_of_images(tmp_path, written, count, size):
    path = plant(tmp_path / "x" / "1.png", noise(12, 12))
    predictions = [prediction(path, f"label {number}") for number in range(count)]
    draw(tmp_path / "grid.png", predictions)
    columns, rows = size
    expected = rows * CELL_HEIGHT + GAP, columns * CELL_WIDTH + GAP, 3
    assert pixels_of(tmp_path / "grid.png").shape == expected
    labels = [written[divmod(number, columns)][0] for number in range(count)]
    assert labels == [f"label {number} 87.5%" for number in range(count)]


def test_the_caption_has_prediction_and_actual_class(tmp_path, written):
    pixels = noise(12, 12)
    decomposed = unicodedata.normalize("NFD", "Füße")
    predictions = [
        prediction(plant(tmp_path / "across" / "1.png", pixels), "across"),
        prediction(plant(tmp_path / "down" / "2.png", pixels), "across", 0.5),
        prediction(plant(tmp_path / decomposed / "3.png", pixels), "Füße"),
        prediction(plant(tmp_path / "elsewhere" / "4.png", pixels), "down"),
    ]
    draw(tmp_path / "grid.png", predictions)
    assert written == {
        (0, 0): ["across 87.5%", "✓ actual: across", "1.png"],
        (0, 1): ["across 50.0%", "✗ actual: down", "2.png"],
        (0, 2): ["Füße 87.5%", "✓ actual: Füße", "3.png"],
        (1, 0): ["down 87.5%", "4.png"],
    }
    # Only the wrong one has a red frame.
    frames = pixels_of(tmp_path / "grid.png")[60].astype(int)
    red = (frames[:, 0] > 150) & (frames[:, 1] < 80) & (frames[:, 2] < 80)
    assert set(np.flatnonzero(red) // CELL_WIDTH) <= {0, 1, 2}
    assert red[GAP + CELL_WIDTH - 3 : GAP + CELL_WIDTH].any()
    assert not red[: GAP + SIDE].any()
    assert not red[GAP + 2 * CELL_WIDTH - 3 :].any()


def test_the_parent_folder_counts_for_relative_paths_too(tmp_path, written, monkeypatch):
    plant(tmp_path / "down" / "1.png", noise(12, 12))
    monkeypatch.chdir(tmp_path / "down")
    draw(tmp_path / "grid.png", [prediction("1.png")])
    assert written[0, 0] == ["across 87.5%", "✗ actual: down", "1.png"]


def test_an_unusable_input_is_an_empty_tile_with_its_reason(tmp_path, written):
    reason = "not a picture that can be read " * 8
    gone = str(tmp_path / "down" / "gone.png")
    predictions = [
        Prediction(str(tmp_path / "down" / "x.png"), None, None, reason, None),
        prediction(gone, "down"),
    ]
    draw(tmp_path / "grid.png", predictions)
    lines, *below = written[0, 0]
    assert lines.startswith("not a picture that can\nbe read")
    assert lines.endswith("…")
    assert len(lines.splitlines()) == 6
    assert below == ["no prediction", "x.png"]
    assert written[0, 1][0].startswith("changed since")
    assert written[0, 1][1:] == ["down 87.5%", "✓ actual: down", "gone.png"]
    assert (tile(tmp_path / "grid.png")[100:160, 10:-10] == 240).all()


def test_names_that_are_long_or_strange(tmp_path, written):
    name = "n" * 100 + ".png"
    path = plant(tmp_path / "x" / name, noise(12, 12))
    labels = ["a label much too long to fit", "$\\frac$ 猫\n\udcff"]
    draw(tmp_path / "grid.png", [prediction(path, label) for label in labels])
    assert written[0, 0] == ["a label much to… 87.5%", "n" * 26 + "…"]
    assert written[0, 1][0] == "$\\frac$ 猫 \udcff 87.5%"


def test_transparency_lies_on_the_models_background(tmp_path):
    path = plant(tmp_path / "x" / "1.png", np.zeros((12, 12, 4), np.uint8))
    draw(tmp_path / "grid.png", [prediction(path)])
    assert (tile(tmp_path / "grid.png")[3:-3, 3:-3] == (255, 0, 0)).all()


def test_a_users_own_matplotlib_settings_change_nothing(tmp_path):
    path = plant(tmp_path / "x" / "1.png", noise(12, 12))
    grids = []
    for settings in ({}, {"savefig.bbox": "tight", "savefig.dpi": 30, "image.origin": "lower"}):
        with matplotlib.rc_context(settings):
            draw(tmp_path / "grid.png", [prediction(path)])
        grids.append(pixels_of(tmp_path / "grid.png"))
    assert np.array_equal(*grids)


@pytest.mark.parametrize("name", ["grid.jpg", "grid", "png", "folder"])
def test_only_png_is_written(tmp_path, name):
    with pytest.raises(OutputError, match="end in .png"):
        check_grid_name(tmp_path / name)
    check_grid_name(tmp_path / "Grid.PNG")


def test_a_grid_can_be_written_along_with_csv_and_json(trained, bars, tmp_path, capsys):
    words = ["predict", str(trained.path), str(bars), "--csv", str(tmp_path / "rows.csv"), "--json"]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--save-grid", str(tmp_path / "grid.png")])
    assert stop.value.code == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["images"] == 120
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 121
    assert f"{tmp_path / 'grid.png'} shows the first 64 of 120 inputs" in err
    expected = pixels_of(min((bars / "across").iterdir())).repeat(14, 0).repeat(14, 1)
    assert (tile(tmp_path / "grid.png")[3:-3, 3:-3] == expected[3:-3, 3:-3]).all()


def test_a_bad_path_is_refused_before_the_model_is_loaded(tmp_path, bars, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(tmp_path / "no-run"), str(bars), "--save-grid", "grid.gif"])
    assert stop.value.code == 2
    assert "--save-grid writes a PNG file" in capsys.readouterr().err
