"""Embedding: the last layer of the features gives the run's own probabilities; files hold all."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow.parquet import read_table
from torch import nn

import onsight
from onsight.cli import main
from onsight.errors import ImageError, ModelError
from onsight.installation import install_command
from onsight.models.file import save_model


@pytest.fixture
def inputs(bars, tmp_path):
    """Two images with a file between them that is none."""
    folder = tmp_path / "inputs"
    folder.mkdir()
    (folder / "a.png").write_bytes((bars / "down" / "003.png").read_bytes())
    (folder / "b.txt").write_text("no image")
    (folder / "c é.png").write_bytes((bars / "across" / "004.png").read_bytes())
    return folder


def command(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_the_last_layer_of_the_features_gives_the_probabilities(trained, bars):
    predictor = onsight.load(trained.path, device="cpu")
    paths = sorted(bars.rglob("*.png"))
    features = torch.from_numpy(predictor.embed(paths))
    with torch.inference_mode():
        found = (predictor.classifier.net.head(features) / predictor.file.temperature).softmax(1)
    assert np.allclose(found, predictor.predict_proba(paths), atol=1e-6)


def test_embed_accepts_what_predict_accepts(trained, bars):
    predictor = onsight.load(trained.path, device="cpu")
    path = bars / "down" / "003.png"
    opened = Image.open(path)
    expected = predictor.embed(path)
    assert expected.dtype == np.float32
    assert expected.shape == (predictor.classifier.net.head.in_features,)
    for image in (str(path), path.read_bytes(), opened, np.asarray(opened)):
        assert np.array_equal(predictor.embed(image), expected)
    assert np.allclose(predictor.embed([path, path]), [expected, expected], atol=1e-6)
    assert predictor.embed([]).shape == (0, len(expected))
    with pytest.raises(ImageError, match="empty file"):
        predictor.embed([path, b""])


def test_npz_has_a_row_per_image_and_the_problems(capsys, trained, inputs, tmp_path):
    out = tmp_path / "features.npz"
    code, out_text, _ = command(capsys, "embed", trained.path, inputs, "--out", out, "--json")
    predictor = onsight.load(trained.path)
    paths = [str(inputs / "a.png"), str(inputs / "c é.png")]
    expected = predictor.embed(paths)
    assert code == 0
    facts = {"images": 3, "used": 2, "problems": 1, "features": expected.shape[1]}
    assert json.loads(out_text) == {**facts, "out": str(out)}
    with np.load(out, allow_pickle=False) as file:
        assert file["paths"].tolist() == paths
        assert np.array_equal(file["features"], expected)
        assert file["features"].dtype == np.float32
        assert file["predicted"].tolist() == predictor.predict(paths)
        assert np.array_equal(file["probability"], predictor.predict_proba(paths).max(1))
        ((path, reason),) = file["problems"].tolist()
    assert path == str(inputs / "b.txt")
    assert "not an image" in reason
    assert command(capsys, "embed", trained.path, inputs, "--out", out)[0] == 0  # replaces it


def test_parquet_has_a_row_per_input(capsys, trained, inputs, tmp_path):
    out = tmp_path / "features.parquet"
    code, out_text, err = command(capsys, "embed", trained.path, inputs, "--out", out)
    assert (code, out_text) == (0, f"{out}\n")
    assert "b.txt: not an image" in err
    rows = read_table(out).to_pylist()
    assert [row["path"] for row in rows] == [str(path) for path in sorted(inputs.iterdir())]
    expected = onsight.load(trained.path).embed([inputs / "a.png", inputs / "c é.png"])
    assert np.array_equal([rows[0]["features"], rows[2]["features"]], expected)
    assert [row["problem"] is None for row in rows] == [True, False, True]
    assert rows[1]["features"] is rows[1]["predicted"] is rows[1]["probability"] is None
    assert command(capsys, "embed", trained.path, inputs, "--out", out)[0] == 0  # replaces it


def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    capsys, trained, inputs, tmp_path, monkeypatch
):
    assert (
        "must end in .npz or .parquet"
        in command(capsys, "embed", "no-such-model", inputs, "--out", tmp_path / "features.csv")[2]
    )
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = tmp_path / "features.parquet"
    code, _, err = command(capsys, "embed", "no-such-model", inputs, "--out", out)
    assert code == 2
    assert install_command("parquet") in err


def test_nothing_usable_leaves_no_file(capsys, trained, inputs, tmp_path):
    out = tmp_path / "features.npz"
    code, _, err = command(capsys, "embed", trained.path, inputs / "b.txt", "--out", out)
    assert code == 2
    assert "the input cannot be used" in err
    assert not out.exists()


class NoHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3)

    def forward(self, images):
        return self.convolution(images).mean(dim=(2, 3))


def test_a_network_without_a_linear_head_is_refused(trained, bars, tmp_path):
    file = onsight.load(trained.path).file
    plain = NoHead()
    weights, path = plain.state_dict(), tmp_path / "plain.safetensors"
    save_model(path, type(file)(**{**vars(file), "model": "mine:NoHead", "weights": weights}))
    predictor = onsight.load(path, module=plain)
    assert predictor.predict(bars / "down" / "003.png") in file.classes
    with pytest.raises(ModelError, match="does not end in a linear layer"):
        predictor.embed(bars / "down" / "003.png")
