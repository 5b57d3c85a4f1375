"""Similar images. Oracle: scikit-learn's cosine distances of the model's own features."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.neighbors import NearestNeighbors

import onsight
from onsight.cli import main
from onsight.inference import similar
from onsight.models.file import load_model_file, save_model


def command(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def run_similar(capsys, *words):
    code, out, err = command(capsys, "similar", *words, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def query(tmp_path):
    """An image that is in no set."""
    pixels = np.random.default_rng(7).integers(0, 80, (12, 12), np.uint8)
    pixels[4] = 250
    Image.fromarray(pixels).save(tmp_path / "query.png")
    return tmp_path / "query.png"


def test_neighbours_are_scikit_learns(capsys, trained, bars, query):
    paths = sorted(map(str, bars.rglob("*.png")))
    predictor = onsight.load(trained.path)
    features = predictor.embed(paths).astype(np.float64)
    centre = features.mean(0)
    search = NearestNeighbors(n_neighbors=4, metric="cosine").fit(features - centre)
    distances, rows = search.kneighbors(predictor.embed([query]) - centre)
    answer = run_similar(capsys, trained.path, query, "--among", bars, "--top", 4)
    assert answer["images"] == 120
    (result,) = answer["similar"]
    assert [near["path"] for near in result["neighbours"]] == [paths[row] for row in rows[0]]
    similarities = [near["similarity"] for near in result["neighbours"]]
    assert np.allclose(similarities, 1 - distances[0], atol=1e-4)
    labels = [near["path"].split("/")[-2] for near in result["neighbours"]]
    assert [near["label"] for near in result["neighbours"]] == labels
    assert not any(near["identical"] for near in result["neighbours"])


def test_a_copy_under_another_name_and_format_is_identical(capsys, trained, bars, tmp_path):
    copy = tmp_path / "copy.bmp"
    Image.open(bars / "down" / "003.png").save(copy)
    _, out, _ = command(capsys, "similar", trained.path, copy, "--among", bars, "--top", 2)
    first, second = out.splitlines()[1:]
    assert first.endswith("down/003.png  identical")
    assert first.split()[:2] == ["1.000", "down"]
    assert "identical" not in second


def test_by_default_training_and_validation_images_are_searched(capsys, trained, query):
    answer = run_similar(capsys, trained.path, query, "--top", 200)
    held_out = (trained.path / "predictions.csv").read_text()
    (result,) = answer["similar"]
    assert answer["images"] == len(result["neighbours"]) == 120 - trained.results["images"]
    names = ["/".join(near["path"].split("/")[-2:]) for near in result["neighbours"]]
    assert not any(name in held_out for name in names)


def test_features_are_computed_once(capsys, trained, bars, query, monkeypatch):
    before = run_similar(capsys, trained.path, query, "--among", bars)

    def never(*given, **named):
        raise AssertionError("computed again")

    monkeypatch.setattr(similar, "compute_features", never)
    assert run_similar(capsys, trained.path, query, "--among", bars) == before


def test_a_folder_without_classes_is_searched_and_bad_files_are_named(
    capsys, trained, bars, query, tmp_path
):
    among = shutil.copytree(bars / "down", tmp_path / "flat")
    (among / "notes.txt").write_text("no image")
    code, out, err = command(
        capsys, "similar", trained.path, query, among / "notes.txt", "--among", among
    )
    assert code == 0
    assert "notes.txt: not an image" in err
    assert "60 images searched" in err
    assert len(out.splitlines()) == 1 + 5 + 1
    assert all(line.split()[1] == "-" for line in out.splitlines()[1:6])


def test_the_grid_shows_query_and_neighbours(capsys, trained, bars, query, tmp_path):
    grid = tmp_path / "grid.png"
    command(capsys, "similar", trained.path, query, "--among", bars, "--save-grid", grid)
    with Image.open(grid) as image:
        shown = np.asarray(image.convert("L"))
    expected = np.repeat(np.repeat(np.asarray(Image.open(query)), 9, axis=0), 9, axis=1)
    top = 14 + (112 - 108) // 2
    assert np.array_equal(shown[top : top + 108, top : top + 108], expected)
    nearest = run_similar(capsys, trained.path, query, "--among", bars)["similar"][0]["neighbours"]
    first = np.repeat(np.repeat(np.asarray(Image.open(nearest[0]["path"])), 9, 0), 9, 1)
    left = 2 * 14 + (112 + 14) + 2
    assert np.array_equal(shown[top : top + 108, left : left + 108], first)


def refused(capsys, *words):
    code, out, err = command(capsys, "similar", *words)
    assert (code, out) == (2, "")
    return err


def test_impossible_requests_are_refused_with_the_reason(capsys, trained, bars, query, tmp_path):
    assert "--top 0 must be at least 1" in refused(capsys, trained.path, query, "--top", 0)
    assert "does not exist" in refused(capsys, trained.path, query, "--among", tmp_path / "no")
    (tmp_path / "b.txt").write_text("no image")
    message = refused(capsys, trained.path, tmp_path / "b.txt", "--among", bars)
    assert "the input cannot be used" in message
    name = tmp_path / "grid.jpg"
    assert ".png" in refused(capsys, trained.path, query, "--save-grid", name)


def test_missing_or_changed_training_images_are_reported(capsys, trained, query, tmp_path):
    file = load_model_file(trained.path)
    moved = tmp_path / "moved"
    shutil.copy(trained.path / "config.toml", tmp_path)
    for data, config, reason in (
        (str(moved), {}, "does not exist"),
        (None, {}, "does not record"),
        (5, {}, "does not record"),
        (str(moved), {"data_format": "poetry"}, "settings cannot be used: --data-format poetry"),
        ("https://localhost/pets", {}, "a place that only a file names is not contacted"),
        ("cifar10", {}, "a place that only a file names is not contacted"),
    ):
        file.provenance.update(data=data, config=config)
        save_model(tmp_path / "model.safetensors", file)
        message = refused(capsys, tmp_path / "model.safetensors", query)
        assert reason in message
        assert "--among FOLDER" in message
    (moved / "x").mkdir(parents=True)
    shutil.copy(query, moved / "x" / "1.png")
    file.provenance["data"] = str(moved)
    save_model(tmp_path / "model.safetensors", file)
    message = refused(capsys, tmp_path / "model.safetensors", query)
    assert "has changed" in message
    assert "--among FOLDER" in message


def test_a_model_file_alone_does_not_decide_what_is_opened(capsys, trained, bars, query, tmp_path):
    copy = shutil.copy(trained.path / "model.safetensors", tmp_path)
    message = refused(capsys, copy, query)
    assert "data that only a model file names is not opened" in message
    assert "--among FOLDER" in message
    assert run_similar(capsys, copy, query, "--among", bars)["images"] == 120
