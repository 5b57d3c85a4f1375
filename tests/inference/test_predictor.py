"""Oracle: the run's own predictions.csv."""

import csv
import html
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import onsight
from onsight.cli import main
from onsight.errors import ConfigError, DataError, ImageError, ModelError, OutputError
from onsight.inference.predict import OutputOptions, predict_files
from onsight.report.console import SilentReporter
from onsight.tensorfile import read_tensors, write_tensors

FAST = {"epochs": 3, "batch_size": 16, "threads": 1, "reporter": SilentReporter()}


@pytest.fixture
def run(trained):
    return trained


def rows_of(run):
    text = (run.path / "predictions.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def test_predictions_equal_the_runs(run, bars):
    rows = rows_of(run)
    predictor = onsight.load(run.path)
    paths = [bars / row["path"] for row in rows]
    assert predictor.predict(paths) == [row["predicted"] for row in rows]
    probabilities = predictor.predict_proba(paths)
    assert probabilities.shape == (len(rows), 2)
    assert np.allclose(probabilities.sum(1), 1, atol=1e-6)
    for row, found in zip(rows, probabilities.max(1), strict=True):
        assert float(row["probability"]) == pytest.approx(found, abs=1e-5)


def test_evaluation_is_bit_equal_to_the_runs(run, bars, tmp_path):
    results = onsight.evaluate(run.path, bars, csv=tmp_path / "again.csv")
    for name in ("accuracy", "loss", "confusion", "classes", "calibration", "images"):
        expected = run.results[name]
        if name == "classes":
            kept = results["classes"][0].keys()
            expected = [{key: row[key] for key in kept} for row in expected]
        assert results[name] == expected
    assert (tmp_path / "again.csv").read_text() == (run.path / "predictions.csv").read_text()
    assert results["seen"] == 120 - results["images"]


def test_tta_is_reported_in_addition_to_the_unchanged_accuracy(bars, tmp_path):
    little = {**FAST, "epochs": 1, "learning_rate": 7e-4, "test_fraction": 0.4, "model": "compact"}
    run = onsight.train(bars, out=tmp_path / "run", **little)
    other = onsight.train(bars, out=tmp_path / "other", tta="flip", **little)
    names = ("tta", "tta_images", "tta_accuracy", "tta_accuracy_low", "tta_accuracy_high")
    assert not set(names) & run.results.keys()
    assert other.results["accuracy"] == run.results["accuracy"]
    assert other.results["loss"] == run.results["loss"]
    predictor = onsight.load(other.path)
    right = 0
    for row in rows_of(other):
        pixels = np.asarray(Image.open(bars / row["path"]))[:, :, None]
        shares = predictor.predict_proba([pixels, pixels[:, ::-1].copy()]).mean(axis=0)
        right += predictor.classes[int(shares.argmax())] == row["label"]
    count = len(rows_of(other))
    assert other.results["tta_accuracy"] == right / count != run.results["accuracy"]
    assert (other.results["tta"], other.results["tta_images"]) == ("flip", count)
    evaluated = onsight.evaluate(run.path, bars, tta="flip")
    assert {name: evaluated[name] for name in names} == {
        name: other.results[name] for name in names
    }
    assert evaluated["loss"] == run.results["loss"]
    with pytest.raises(ConfigError, match="no views 'five'"):
        onsight.evaluate(run.path, bars, tta="five")


def test_an_image_has_the_same_result_alone_and_among_others(run, bars):
    predictor = onsight.load(run.path)
    paths = sorted(bars.rglob("*.png"))[:40]
    net = predictor.classifier.net.double()  # in float32 other batches may be rounded otherwise
    net.register_forward_pre_hook(lambda net, inputs: inputs[0].double())
    before = {name: t.clone() for name, t in net.state_dict().items()}
    together = predictor.predict_proba(paths)
    alone = np.concatenate([predictor.predict_proba([path]) for path in paths])
    assert np.allclose(together, alone, atol=1e-5)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_paths_bytes_and_pixels_are_equivalent(run, bars):
    predictor = onsight.load(run.model)
    path = next(bars.rglob("*.png"))
    pixels = np.asarray(Image.open(path))[:, :, None]
    forms = [path, str(path), path.read_bytes(), Image.open(path), pixels, pixels[:, :, 0]]
    rows = predictor.predict_proba(forms)
    assert (rows == rows[0]).all()


def test_one_image_returns_one_label_and_several_a_list(run, bars):
    predictor = onsight.load(run.model)
    paths = sorted(bars.rglob("*.png"))[:3]
    labels, rows = predictor.predict(paths), predictor.predict_proba(paths)
    assert predictor.predict(np.array([str(path) for path in paths])) == labels
    pixels = np.stack([np.asarray(Image.open(path))[:, :, None] for path in paths])
    assert (predictor.predict_proba(pixels) == rows).all()
    for image in (
        paths[0],
        paths[0].read_bytes(),
        Image.open(paths[0]),
        pixels[0],
        pixels[0, :, :, 0],
    ):
        assert predictor.predict(image) == labels[0]
        assert predictor.predict_proba(image).shape == (2,)
        assert predictor.predict([image]) == labels[:1]
    assert predictor.predict([]) == []
    assert predictor.predict_proba([]).shape == (0, 2)
    image = Image.open(paths[0])
    assert predictor.predict([image] * 50) == labels[:1] * 50  # threads share the one image


def test_a_call_returns_class_probability_and_the_top_classes_by_name(run, bars, tmp_path):
    predictor = onsight.load(run.model)
    path = sorted(bars.rglob("*.png"))[0]
    probabilities = predictor.predict_proba(path)
    named = sorted(zip(predictor.classes, probabilities.tolist(), strict=True), key=lambda p: -p[1])
    found = predictor(path)
    assert (found.predicted, found.probability) == named[0] == found.top[0]
    assert found.top == tuple(named)
    assert predictor(path, top=1).top == tuple(named[:1])
    assert f"predicted='{found.predicted}'" in repr(found)
    assert "array" not in repr(found)
    (tmp_path / "a.txt").write_text("no image")
    rows = predictor([path, tmp_path / "a.txt"])
    assert [row.top for row in rows] == [found.top, ()]
    assert rows[1].problem.startswith("not an image")
    with pytest.raises(ConfigError, match="top = 0 must be at least 1"):
        predictor(path, top=0)


def test_a_folder_stands_for_its_files(run, bars, tmp_path):
    predictor = onsight.load(run.model)
    paths = sorted(bars.rglob("*.png"))
    labels = predictor.predict(paths)
    assert predictor.predict(bars) == predictor.predict(str(bars)) == labels
    assert predictor.predict([bars, paths[0]]) == [*labels, labels[0]]
    assert (predictor.predict_proba(bars) == predictor.predict_proba(paths)).all()
    assert [row.path for row in predictor(bars)] == [str(path) for path in paths]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no input images found"):
        predictor.predict(tmp_path / "empty")


def test_runs_and_predictors_have_a_repr(run, bars):
    hostile = '<script>"&</script>'
    claim = f"{100 * run.accuracy:.2f}%"
    shown = replace(run, path=Path(hostile)), onsight.load(run.path)
    shown[1].runner.classes = (hostile, "b")
    for value in shown:
        assert claim in repr(value)
        assert len(repr(value)) < 300
        page = value._repr_html_()
        assert claim in page
        assert "<script>" not in page
        assert html.escape(hostile) in page
        assert "://" not in page


def test_a_run_shows_its_confusion_matrix_and_opens_its_report(
    run, rendered_figures, monkeypatch, tmp_path
):
    page = run._repr_html_()
    assert f'<a href="{run.report.as_uri()}" target="_blank">' in page
    plot = page[page.index("<svg") : page.index("</svg>")]
    assert 'aria-label="Confusion matrix of 2 classes"' in plot
    assert ">across<" in plot
    named = tmp_path / "a&b c"
    monkeypatch.chdir(tmp_path)
    assert '<a href="a%26b%20c/report.html" ' in replace(run, path=named)._repr_html_()
    empty = {**run.results, "images": 0, "confusion": [[0, 0], [0, 0]]}
    assert "<svg" not in replace(run, results=empty)._repr_html_()


def test_every_input_has_its_row_and_a_broken_one_its_reason(run, bars, tmp_path, capsysbinary):
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    good = sorted(bars.rglob("*.png"))[:3]
    for number, path in enumerate(good):
        (mixed / f"{number}.png").write_bytes(path.read_bytes())
    (mixed / "1-broken.png").write_bytes(good[0].read_bytes()[:50])
    (mixed / ".hidden").write_bytes(b"")
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(run.path), str(mixed), "--csv", "-"])
    assert stop.value.code == 0
    rows = list(csv.DictReader(capsysbinary.readouterr().out.decode().splitlines()))
    assert [Path(row["path"]).name for row in rows] == ["0.png", "1-broken.png", "1.png", "2.png"]
    assert [bool(row["predicted"]) for row in rows] == [True, False, True, True]
    assert rows[1]["problem"].startswith("broken")
    assert rows[1]["probability"] == ""
    with pytest.raises(SystemExit):
        main(["predict", str(run.path), str(mixed), "--json"])
    facts = json.loads(capsysbinary.readouterr().out.decode().splitlines()[-1])
    assert (facts["images"], facts["used"], facts["problems"]) == (4, 3, 1)
    with pytest.raises(ImageError, match="1-broken.png: broken"):
        onsight.load(run.path).predict([mixed / "1-broken.png"])


def test_evaluation_refuses_images_it_was_trained_on(run, bars, tmp_path):
    trained_on = tmp_path / "trained"
    held_out = {row["path"] for row in rows_of(run)}
    for path in bars.rglob("*.png"):
        relative = path.relative_to(bars)
        if str(relative) not in held_out:
            target = trained_on / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    with pytest.raises(DataError, match="used to train this model"):
        onsight.evaluate(run.path, trained_on)


def altered(run, path, change):
    """A copy of a run's model file whose weights and facts a function has changed."""
    weights, facts = read_tensors(run.path / "model.safetensors")
    change(weights, facts)
    write_tensors(path, weights, facts)
    return path


@pytest.mark.parametrize("results", [{"images": "9"}, {"classes": [{"recall": [1]}]}])
def test_results_of_other_types_are_refused(run, tmp_path, results):
    path = altered(
        run, tmp_path / "m.safetensors", lambda _, facts: facts["results"].update(results)
    )
    with pytest.raises(OutputError, match=rf"m\.safetensors is damaged: {next(iter(results))}"):
        onsight.load(path)


def test_a_model_with_few_results_can_be_used(run, tmp_path):
    path = altered(
        run, tmp_path / "m.safetensors", lambda _, facts: facts.update(results={"images": 1})
    )
    assert "result" not in onsight.load(path).runner.facts


def test_outputs_that_are_no_numbers_are_no_predictions(run, bars, tmp_path):
    def spoil(weights, facts):
        facts["image"]["std"] = [1e-300] * facts["image"]["channels"]

    path = altered(run, tmp_path / "m.safetensors", spoil)
    (row,) = onsight.load(path)([np.zeros((12, 12), np.uint8)])
    assert (row.predicted, row.problem) == (None, "the model's output is not a number")
    with pytest.raises(ModelError, match=r"not a number for (\d+) of \1 images"):
        onsight.evaluate(path, bars)


def test_evaluation_checks_its_output_path_first(run, tmp_path):
    with pytest.raises(OutputError, match="is a folder"):
        onsight.evaluate(run.path, tmp_path / "missing", csv=tmp_path)


def test_evaluation_matches_classes_by_name(run, bars, tmp_path):
    rng = np.random.default_rng(5)
    for name in ("down", "aardvark"):
        (tmp_path / "new" / name).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 255, (12, 12), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "new" / name / f"{number}.png")
    results = onsight.evaluate(run.path, tmp_path / "new")
    assert results["images"] == 4
    assert results["problems"] == 4
    assert "aardvark" in results["problem_rows"][0].reason
    assert [row["images"] for row in results["classes"]] == [0, 4]


def test_evaluation_reproduces_a_given_split_with_copies(bars, tmp_path):
    for number, path in enumerate(sorted(bars.rglob("*.png"))):
        split = "test" if number % 4 == 0 else "train"
        target = tmp_path / "given" / split / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        if number % 12 == 0:  # a copy of a test image among the training ones
            copy = tmp_path / "given" / "train" / path.parent.name / f"copy-{path.name}"
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    run = onsight.train(tmp_path / "given", out=tmp_path / "run2", **FAST)
    assert run.results["problems"] == 10
    results = onsight.evaluate(run.path, tmp_path / "given")
    assert results["images"] == run.results["images"] == 30
    assert results["confusion"] == run.results["confusion"]


def test_pixels_of_another_kind_are_refused(run):
    predictor = onsight.load(run.path)
    for pixels in (np.zeros((12, 12, 1), np.int64), np.zeros((12, 12, 2), np.uint8)):
        with pytest.raises(ImageError, match=r"\(in memory\): an array of .* is not an image"):
            predictor.predict([pixels])
    (prediction,) = predictor.predictions(torch.zeros(1, 12, 12, 2))
    assert prediction.problem.startswith("an array of float32 (12, 12, 2) is not an image: pass")
    masked = np.ma.masked_equal(np.zeros((12, 12), np.uint8), 0)
    for pixels, message in (
        (torch.rand(12, 12).to_sparse(), "a tensor of torch.sparse_coo on cpu is not an image"),
        (torch.rand(12, 12, device="meta"), "a tensor of torch.strided on meta is not an image"),
        (bytearray(2), "a bytearray is not an image"),
        (memoryview(b"ab"), "a memoryview is not an image"),
        (io.BytesIO(b"a\nb"), "a BytesIO is not an image"),
        (masked, "has masked pixels"),
    ):
        assert predictor(pixels).problem.startswith(message)


def test_a_fifo_among_the_inputs_does_not_hang(run, bars, tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe.png")
    (prediction,) = onsight.load(run.path).predictions([tmp_path / "pipe.png"])
    assert prediction.problem == "cannot be read: not a regular file"


class OwnNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(144, 2)

    def forward(self, images):
        return self.linear(images.flatten(1))


def test_a_model_file_never_causes_a_users_network_to_be_imported(bars, tmp_path):
    run = onsight.train(bars, out=tmp_path / "own", model=OwnNet(), **FAST)
    with pytest.raises(ModelError, match="--module"):
        onsight.load(run.path)
    rows = rows_of(run)
    predictor = onsight.load(run.path, module=OwnNet())
    assert predictor.predict([bars / rows[0]["path"]]) == [rows[0]["predicted"]]


@pytest.mark.parametrize("flag", ["csv", "grid"])
def test_an_input_image_is_never_overwritten(run, bars, tmp_path, flag):
    image = tmp_path / "mine.png"
    shutil.copy(next(bars.rglob("*.png")), image)
    content = image.read_bytes()
    target = str(image) if flag == "csv" else image
    with pytest.raises(OutputError, match=r"would replace .*mine.png in the input"):
        predict_files(run.path, [str(tmp_path)], OutputOptions(**{flag: target}))
    assert image.read_bytes() == content


def test_names_with_a_carriage_return_keep_their_row(run, bars, tmp_path):
    image = tmp_path / "two\rlines.png"
    shutil.copy(next(bars.rglob("*.png")), image)
    predict_files(run.path, [str(image)], OutputOptions(csv=str(tmp_path / "out.csv")))
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert [row[0] for row in rows] == ["path", str(image)]
