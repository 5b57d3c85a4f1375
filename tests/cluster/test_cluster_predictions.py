"""Rows from a cluster equal those of one machine; lost rows and unseen files are named."""

import json
import sys

import numpy as np
import pytest
from pyarrow.parquet import read_table

from onsight.cli import main
from onsight.cluster.predict import ModelSettings, from_table, predict_batches, to_table
from onsight.errors import OnsightError
from onsight.inference.images import file_input
from onsight.inference.predictor import Prediction, load


def command(*words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code


@pytest.fixture
def images(bars):
    (bars / "across" / "0 broken.png").write_bytes(b"\x89PNG")
    (bars / "down" / "z.txt").write_text("no image")
    return bars


def test_every_row_is_the_local_one(fake_ray, trained, images, tmp_path):
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    words = ["predict", trained.path, images, "--top", 2]
    assert command(*words, "--parquet", here) == 0
    assert command(*words, "--parquet", there, "--cluster", "auto") == 0
    local = read_table(here)
    assert local["problem"].null_count == local.num_rows - 2
    assert read_table(there).equals(local)


def test_features_are_the_local_ones(fake_ray, trained, images, tmp_path, capsys):
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    assert command("embed", trained.path, images, "--out", here) == 0
    words = ["embed", trained.path, images, "--out", there, "--cluster", "auto", "--json"]
    capsys.readouterr()
    assert command(*words) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == 2
    assert read_table(there).equals(read_table(here))


def test_predictions_survive_the_journey():
    sure = np.array([0.25, 0.75], np.float32)
    features = np.arange(3, dtype=np.float32)
    found = [
        Prediction("a", "x", 0.75, None, sure, True, 0.1, features),
        Prediction("b", None, None, "empty file", None),
        Prediction("c", "y", 0.75, None, sure[::-1], None, None, features + 1),
    ]
    back = list(from_table("abc", to_table([0, 1, 2], found, True)))
    for sent, received in zip(found, back, strict=True):
        for name in vars(sent):
            assert np.array_equal(getattr(sent, name), getattr(received, name)), name
    (plain, *_) = from_table("abc", to_table([0, 1, 2], found, False))
    assert plain.probabilities is None
    assert np.array_equal(plain.features, features)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda tables: tables[1:], "lost or repeated rows after the first 0"),
        (lambda tables: [tables[0], *tables], "lost or repeated rows"),
        (lambda tables: tables[:-1], "rows: nothing was kept"),
        (lambda tables: tables[::-1], "lost or repeated rows after the first 0"),
    ],
)
def test_rows_that_ray_loses_repeats_or_moves_are_an_error(
    fake_ray, trained, shared_bars, monkeypatch, fault, said
):
    monkeypatch.setattr("onsight.cluster.predict._BLOCK_BATCHES", 1)
    whole = fake_ray.data.from_arrow

    def faulty(blocks):
        made = whole(blocks)
        sound = made.iter_batches
        made.iter_batches = lambda **options: fault(list(sound(**options)))
        return made

    fake_ray.data.from_arrow = faulty
    predictor = load(trained.path, device="cpu")
    predictor.runner.batch_size = 8
    settings = ModelSettings(str(trained.path), "cpu", None, "")
    inputs = map(file_input, sorted(map(str, shared_bars.rglob("*.png"))))
    with pytest.raises(OnsightError, match=said):
        list(predict_batches(fake_ray, settings, predictor, inputs, False))


def test_an_image_that_only_the_command_sees_is_named(
    fake_ray, trained, bars, tmp_path, capsys, monkeypatch
):
    from onsight.cluster import predict

    seen = predict.os.path.exists
    monkeypatch.setattr(
        predict.os.path, "exists", lambda path: "/bars/" not in str(path) and seen(path)
    )
    out = tmp_path / "out.parquet"
    assert command("predict", trained.path, bars, "--parquet", out, "--cluster", "auto") == 2
    assert "does not exist on" in capsys.readouterr().err
    assert not out.exists()


def test_options_that_need_one_machine_are_refused(
    fake_ray, trained, shared_bars, tmp_path, capsys
):
    import shutil

    archive = shutil.make_archive(str(tmp_path / "bars"), "zip", shared_bars)
    words = ["predict", trained.path, "--csv", tmp_path / "out.csv", "--cluster", "auto"]
    assert command(*words, archive) == 2
    assert "unpack the archive" in capsys.readouterr().err
    assert command(*words, shared_bars, "--resume") == 2
    assert "remove --resume or --cluster" in capsys.readouterr().err


def test_nothing_of_ray_is_loaded_without_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    import importlib

    for name in ("train", "predict", "ranks"):
        importlib.reload(importlib.import_module(f"onsight.cluster.{name}"))
