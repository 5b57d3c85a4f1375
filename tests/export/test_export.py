"""Oracles: the run's own results and predictions; planted faults that the proof must find."""

import errno
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from readme_program import run_readme

import onsight
from onsight.cli import main
from onsight.data.loader import Batch
from onsight.errors import ConfigError, DataError, DiskError, ExportMismatch, ModelError
from onsight.evaluation.statistics import PairedCounts, difference_interval
from onsight.export import export as exporting
from onsight.export import format as formats
from onsight.export import int8, proof, to_onnx
from onsight.export.export import export
from onsight.export.proof import ExportProof, check_difference, compare_outputs
from onsight.models.file import load_model_file, save_model
from onsight.report.page import write_report


@pytest.fixture(autouse=True)
def briefly(monkeypatch):
    """Speed is measured in as few rounds as possible."""
    monkeypatch.setattr(proof, "_MIN_SECONDS", 0)
    monkeypatch.setattr(proof, "_MIN_ROUNDS", 1)


@pytest.fixture
def copied(trained, tmp_path):
    """The run folder, as a test's own."""
    return Path(shutil.copytree(trained.path, tmp_path / "run"))


def changed_file(trained, path, **changes):
    save_model(path, replace(load_model_file(trained.path), **changes))
    return path


def test_the_command_proves_the_file_on_the_runs_own_test_images(copied, trained, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["export", str(copied), "--json"])
    assert stop.value.code == 0
    facts = json.loads(capsys.readouterr().out)
    kept = json.loads((copied / "export" / "model.onnx.proof.json").read_text())
    assert {**kept, "out": facts["out"]} == facts
    assert facts["images"] == facts["agree"] == trained.results["images"]
    assert facts["accuracy"] == facts["accuracy_in_torch"] == trained.results["accuracy"]
    assert facts["largest_difference"] <= 1e-5
    assert facts["bytes"] == Path(facts["out"]).stat().st_size
    assert {path.name for path in (copied / "export").iterdir()} == {
        "model.onnx",
        "model.onnx.proof.json",
        "README.md",
    }
    with pytest.raises(SystemExit):
        main(["report", str(copied)])
    assert '<section id="exports">' in (copied / "report.html").read_text()


@pytest.mark.parametrize("to", ["torch-export"])
def test_other_formats_say_the_same(trained, bars, tmp_path, to, capsys, monkeypatch):
    suffix = formats.find_format(to).suffix
    monkeypatch.setattr("onsight_explain.paired_timing.is_busy", lambda: True)
    with pytest.raises(SystemExit) as stop:
        main(["export", str(trained.path), "--to", to, "--out", str(tmp_path / f"m{suffix}")])
    assert stop.value.code == 0
    said, notes = capsys.readouterr()
    assert "this machine is busy with other work" in notes
    n = trained.results["images"]
    assert f"{n} of {n} held-out images have the same label as in torch in fp32 (100%)" in said
    probabilities = run_readme(tmp_path / "README.md", next(bars.rglob("*.png")), monkeypatch)
    expected = onsight.load(trained.path).predict_proba(next(bars.rglob("*.png")))
    assert np.abs(probabilities - expected).max() <= 1e-4


def test_a_file_that_does_something_else_is_refused(trained, tmp_path, monkeypatch, capsys):
    right = exporting.as_program

    def wrong(classifier, *rest):
        classifier.temperature *= 2
        return right(classifier, *rest)

    monkeypatch.setattr(exporting, "as_program", wrong)
    words = ["--to", "torch-export", "--out", str(tmp_path / "m.pt2")]
    with pytest.raises(SystemExit) as stop:
        main(["export", str(trained.path), *words])
    assert stop.value.code == 1
    assert "was rejected, and nothing was written: probabilities differ" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_leaves_nothing(trained, tmp_path, monkeypatch):
    def no_room(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch.export, "save", no_room)
    with pytest.raises(DiskError, match="no space left on the disk"):
        export(trained.path, to="torch-export", out=tmp_path / "m.pt2")
    assert list(tmp_path.iterdir()) == []


def test_not_a_number_is_no_agreement():
    proof = ExportProof(2, 2, math.nan, PairedCounts(2, 0, 0, 0))
    with pytest.raises(ExportMismatch, match="by up to nan"):
        check_difference(proof, "onnx")


def test_both_ways_are_compared_image_by_image():
    labels = torch.tensor([0, 1, 1, 0, 1])
    first = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7], [0.4, 0.6]], np.float32)
    second = np.array([[0.8, 0.2], [0.7, 0.3], [0.6, 0.4], [0.6, 0.4], [0.4, 0.6]], np.float32)
    ids = torch.arange(5)
    images = ids.to(torch.uint8).view(5, 1, 1, 1)
    batches = [Batch(images[part], labels[part], ids[part], labels) for part in (ids[:3], ids[3:])]

    def reading(table):
        return lambda images: table[images[:, 0, 0, 0]]

    done = []
    proof = compare_outputs(reading(first), reading(second), batches, done.append)
    assert done == [3, 2]
    assert (proof.images, proof.agree) == (5, 3)
    assert proof.largest_difference == pytest.approx(0.5)
    assert proof.right == PairedCounts(2, 1, 1, 1)
    assert proof.facts()["accuracy"] == proof.facts()["accuracy_in_torch"] == 3 / 5
    interval = tuple(proof.facts()[f"accuracy_lost{end}"] for end in ("", "_low", "_high"))
    assert interval == (0, *difference_interval(PairedCounts(2, 1, 1, 1)))


def test_speed_is_the_median_of_rounds_in_turns(monkeypatch):
    clock, calls = [0.0], []
    monkeypatch.setattr(proof.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(proof, "_MIN_ROUNDS", 4)

    def taking(name, seconds):
        def way(images):
            calls.append(name)
            clock[0] += next(seconds)

        return way

    first = taking("first", iter([9, 4, 4, 4, 40]))
    second = taking("second", iter([9, 1, 2, 2, 2]))
    found = proof.compare_speed(first, second, np.zeros((8, 1, 1, 1), np.uint8))
    assert calls[2:] == ["first", "second", "second", "first"] * 2
    assert found == (8, 2.0, 4.0, 3.0, 2.0, 4.0)


def test_int8_is_measured_on_training_images_alone(trained, tmp_path, monkeypatch):
    given = []
    right = int8.write_int8

    def write(exported, images, path):
        given.append(images)
        shutil.copy(exported, tmp_path / "fp32.onnx")
        right(exported, images, path)

    monkeypatch.setattr(int8, "write_int8", write)
    out = tmp_path / "m.onnx"
    found = export(trained.path, int8=True, max_loss=100, out=out)
    assert len(given[0]) == len(load_model_file(trained.path).seen)
    nodes = {node.op_type for node in onnx.load(out).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= nodes
    assert found.facts["precision"] == "int8"
    assert found.proof.largest_difference > 0
    assert onsight.load(out).runner.metadata["int8"] == {"calibration_images": len(given[0])}

    def write_the_same_graph(program, facts, path):
        shutil.copy(tmp_path / "fp32.onnx", path)

    known = to_onnx.FORMAT._replace(write=write_the_same_graph)
    monkeypatch.setattr(to_onnx, "FORMAT", known)
    with pytest.raises(ExportMismatch, match=r"must be at most 0\. .*--max-loss"):
        export(trained.path, int8=True, max_loss=0, out=tmp_path / "no.onnx")
    assert not (tmp_path / "no.onnx").exists()


def test_a_cross_validated_run_is_proved_on_its_training_images(
    shared_bars, train_once, tmp_path, capsys
):
    settings = {"model": "lenet", "image_size": "16", "batch_size": 16, "threads": 1, "epochs": 1}
    run = train_once("cross-validated", shared_bars, report=False, folds=2, **settings)
    copied = Path(shutil.copytree(run.path, tmp_path / "run"))
    with pytest.raises(SystemExit) as stop:
        main(["export", str(copied), "--to", "torch-export"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert "120 of 120 training images have the same label as in torch in fp32 (100%)" in said
    assert "accuracy: not compared, as the model was trained on all of these images" in said
    facts = json.loads((copied / "export" / "model.pt2.proof.json").read_text())
    assert facts["images"] == facts["agree"] == 120
    assert facts["accuracy"] is facts["accuracy_lost"] is facts["right"] is None
    page = write_report(copied).read_text(encoding="utf-8")
    assert '<td class="n">120 of 120</td>' in page
    with pytest.raises(DataError, match=r"all 120 labelled .*--on DATA, or train with --folds 1"):
        export(copied, int8=True)


def in_torch(model, **options):
    """Export to torch's format, which takes less time than ONNX."""
    return export(model, to="torch-export", **options)


def test_accuracies_are_compared_on_held_out_images_only(trained, shared_bars, tmp_path):
    rows = (trained.path / "predictions.csv").read_text().splitlines()
    judged = {row.split(",")[0] for row in rows}
    for path in shared_bars.rglob("*.png"):
        name = path.relative_to(shared_bars)
        if str(name) not in judged:
            (tmp_path / "seen" / name.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / "seen" / name)
    found = in_torch(trained.path, on=str(tmp_path / "seen"), out=tmp_path / "m.pt2")
    assert (found.proof.images, found.proof.right) == (120 - len(judged) + 1, None)  # and a header
    with pytest.raises(DataError, match=r"(?s)no images to prove.*--on DATA"):
        in_torch(trained.path, on=str(tmp_path / "nothing"), out=tmp_path / "m.pt2")
    origin = {**load_model_file(trained.path).provenance, "data": str(tmp_path / "moved")}
    model = changed_file(trained, tmp_path / "m.safetensors", provenance=origin)
    with pytest.raises(DataError, match=r"(?s)only a model file names is not opened.*--on DATA"):
        in_torch(model)
    shutil.copy(trained.path / "config.toml", tmp_path)
    with pytest.raises(DataError, match=r"(?s)moved.*--on DATA"):
        in_torch(model)
    found = in_torch(model, on=str(shared_bars))
    assert found.path == tmp_path / "model.pt2"
    assert found.proof.images == trained.results["images"]


def test_your_own_network_needs_its_module(trained, shared_bars, tmp_path, monkeypatch):
    name = load_model_file(trained.path).model
    text = f"""
from onsight.models.catalog import make_model
def make(shape, classes):
    return make_model("{name}", shape, classes)
"""
    (tmp_path / "own_net_to_export.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    model = changed_file(trained, tmp_path / "m.safetensors", model="own_net_to_export:make")
    with pytest.raises(ModelError, match="--module own_net_to_export:make"):
        in_torch(model)
    found = in_torch(model, module="own_net_to_export:make", on=str(shared_bars))
    assert found.facts["model"].startswith("own_net")


def test_what_cannot_be_exported_is_said_before_any_work(trained, tmp_path, monkeypatch):
    for name in ("coreml", "executorch", "openvino", "tflite"):
        with pytest.raises(ConfigError, match=rf"does not export to {name}: .*[Ee]xport to onnx"):
            export(trained.path, to=name)
    with pytest.raises(ConfigError, match="there is no format 'onyx'.*Did you mean onnx"):
        export(trained.path, to="onyx")
    with pytest.raises(ConfigError, match=r"must end in \.onnx"):
        export(trained.path, out=tmp_path / "m.bin")
    with pytest.raises(ConfigError, match="--int8 is for --to onnx"):
        export(trained.path, to="torch-export", int8=True)
    with pytest.raises(ConfigError, match="--max-loss"):
        export(trained.path, max_loss=math.nan)
    (tmp_path / "m.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="is damaged"):
        export(tmp_path / "m.safetensors", out=tmp_path / "m.onnx")
    monkeypatch.setattr("onsight.installation.is_installed", lambda name: False)
    with pytest.raises(ConfigError, match=r"needs onnx: pip install .*\[export\]'"):
        export(trained.path)


def test_a_model_in_less_precision_is_exported_in_fp32(trained, shared_bars, tmp_path):
    file = load_model_file(trained.path)
    # Both logits are biases. 1 + 2 ** -8 is halfway between two bf16 numbers and rounded to 1.
    head = {"head.weight": torch.zeros(2, file.weights["head.weight"].shape[1])}
    head |= {"head.bias": torch.tensor([1 + 2**-8, 0])}
    less = file.preprocessing.model_copy(update={"precision": "bf16"})
    changes = {"preprocessing": less, "weights": file.weights | head, "temperature": 1.0}
    model = changed_file(trained, tmp_path / "m.safetensors", **changes)
    found = in_torch(model, on=str(shared_bars))
    assert found.facts["image"]["precision"] == "fp32"
    assert found.proof.largest_difference <= 1e-6
    own, (exact, rounded) = found.facts["own_precision"], torch.tensor([1 + 2**-8, 1]).sigmoid()
    assert own["precision"] == "bf16"
    assert own["largest_difference"] == pytest.approx(float(exact - rounded), abs=1e-6)
    assert any("`onsight predict` on the model computes in bf16" in line for line in found.lines())
