"""Commands say on the device what they say on the CPU: eval, predict, explain, resume."""

import itertools
import json
import os
import signal

import numpy as np
import pytest
from on_device import DEVICE, IS_SIMULATED, assert_alike, rows_of
from PIL import Image
from safetensors.torch import load_file

import onsight
from conftest import planted_images
from onsight.cli import main
from onsight.errors import Interrupted
from onsight.features import choose_head, heads
from onsight.training import fit_head, hidden_layer
from onsight.tune import planning
from onsight.tune import probe as pick_fastest
from onsight_explain import ceilings

SETTINGS = {"model": "lenet", "precision": "fp32", "plan": "default", "folds": "1"}
FEW = SETTINGS | {"batch_size": 16}
DEVICES = [str(DEVICE)]
if IS_SIMULATED:  # on the current device, too
    DEVICES.append(pytest.param("simulated:0", marks=pytest.mark.soak))


def write(folder, images, labels):
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / label / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory, images):
    """Images that no model has seen."""
    pixels, labels = images
    return write(tmp_path_factory.mktemp("others"), np.flip(pixels, 1), labels)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory, images):
    data = write(tmp_path_factory.mktemp("images"), *images)
    folder = tmp_path_factory.mktemp("runs") / "run"
    onsight.train(str(data), out=str(folder), device="cpu", epochs=1, **FEW)
    return folder


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("device", DEVICES)
def test_eval_gives_the_same_figures(machine_off, run_folder, files, capsys, device):
    plain = json.loads(said(capsys, "eval", run_folder, files, "--device", "cpu", "--json"))
    with machine_off() as machine:
        found = json.loads(said(capsys, "eval", run_folder, files, "--device", device, "--json"))
        machine.check()
    for facts in (plain, found):
        for name in ("seconds", "device", "images_per_second"):
            facts.pop(name, None)
    assert_alike(found, plain)


@pytest.mark.parametrize("device", DEVICES)
def test_predict_gives_the_same_rows(machine_off, run_folder, files, capsys, device):
    plain = said(capsys, "predict", run_folder, files, "--device", "cpu", "--csv", "-")
    with machine_off() as machine:
        found = said(capsys, "predict", run_folder, files, "--device", device, "--csv", "-")
        machine.check()
    assert_alike(rows_of(found), rows_of(plain))
    assert found.count("\n") > 60


def test_everything_is_where_it_should_be(machine_off, tmp_path, images):
    with machine_off() as machine:
        onsight.train(
            images,
            out=str(tmp_path / "run"),
            model="compact",
            device=str(DEVICE),
            epochs=1,
            folds="1",
        )
        machine.check()
    placement = json.loads((tmp_path / "run" / "placement.json").read_text())
    assert {row["device"] for row in placement} == {str(DEVICE)}


@pytest.mark.parametrize("folds", ["1", "2"])
def test_a_fitted_head_is_that_of_the_cpu(machine_off, tmp_path, monkeypatch, folds):
    """A head is fitted on features on the CPU, and its network computes on the device."""
    monkeypatch.setattr(fit_head, "has_enough_images", lambda *_: folds == "1")
    monkeypatch.setattr(hidden_layer, "is_clearly_better", lambda *_: True)
    monkeypatch.setattr(choose_head, "_MIN_VALIDATION", 20)  # no folds within folds
    monkeypatch.setattr(heads, "_TOLERANCE", 1e-3)
    monkeypatch.setattr(heads, "_MIN_EPOCHS", 1)
    monkeypatch.setattr(heads, "_MIN_STEPS", 4)
    with machine_off() as machine:
        plain, found = (
            fit_head_on(device, tmp_path / device, folds) for device in ("cpu", str(DEVICE))
        )
        machine.check()
    assert plain["out_of_distribution"]["images"]  # the detector is tested on some
    # Each device computes its own features, and its sums may have another order.
    rounding = 1e-6 if IS_SIMULATED else 1e-2
    for name in ("accuracy", "loss", "out_of_distribution"):
        assert found[name] == pytest.approx(plain[name], rel=rounding, abs=0.1 * rounding)


def fit_head_on(device, folder, folds):
    settings = {"model": "compact", "freeze": True, "precision": "fp32", "plan": "default"}
    images = planted_images(count=480)
    onsight.train(images, out=str(folder), device=device, folds=folds, **settings)
    return json.loads((folder / "results.json").read_text())


def test_the_plan_times_steps_as_a_graph(machine_off, tmp_path, images, monkeypatch):
    monkeypatch.setattr(planning, "_MIN_RUN_SECONDS", 0.0)
    monkeypatch.setattr(planning, "_MIN_MEASURING_SECONDS", 60.0)  # however busy the machine is
    monkeypatch.setattr(planning, "_MAX_MEASURING_SECONDS", 60.0)
    monkeypatch.setattr(pick_fastest, "_ROUNDS", 2)
    settings = {**SETTINGS, "plan": "fresh", "precision": "fp32", "batch_size": 8}
    with machine_off() as machine:
        onsight.train(images, out=str(tmp_path / "run"), device=str(DEVICE), epochs=1, **settings)
        machine.check()
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    timed = {row["cuda_graph"]: row.get("images_per_second") for row in plan["measured"]["value"]}
    assert timed["off"] > 0
    assert timed["on"] > 0


@pytest.mark.parametrize("cuda_graph", [pytest.param("off", marks=pytest.mark.soak), "on"])
def test_a_stopped_run_goes_on_to_the_same_bits(
    machine_off, tmp_path, images, monkeypatch, cuda_graph
):
    from onsight.training.trainer import Trainer

    def train(folder, **settings):
        onsight.train(
            images,
            out=str(folder),
            **SETTINGS | ({"model": "compact", "ema": 0.9} if cuda_graph == "off" else {}),
            device=str(DEVICE),
            epochs=2,
            cuda_graph=cuda_graph,
            batch_size=8,
            **settings,
        )

    plain_step = Trainer._train_step
    done = []

    def stop_in_the_middle(self, batch, *place):
        plain_step(self, batch, *place)
        done.append(batch)
        if len(done) == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    with machine_off() as machine:
        train(tmp_path / "whole")
        monkeypatch.setattr(Trainer, "_train_step", stop_in_the_middle)
        with pytest.raises(Interrupted):
            train(tmp_path / "stopped")
        monkeypatch.setattr(Trainer, "_train_step", plain_step)
        train(tmp_path / "stopped", resume=True)
        machine.check()
    whole, stopped = (
        load_file(tmp_path / name / "model.safetensors") for name in ("whole", "stopped")
    )
    for name, tensor in whole.items():
        assert tensor.equal(stopped[name]), name


def test_a_run_with_a_budget_trains_with_steps_as_a_graph_and_is_repeated_to_the_same_bits(
    machine_off, tmp_path, images, capsys, monkeypatch
):
    first, second = tmp_path / "first", tmp_path / "second"
    fields = {"model": "lenet", "cuda_graph": "on", "folds": "1", "plan": "default"}
    readings = itertools.count()
    with machine_off() as machine:
        with monkeypatch.context() as patched:
            for name in ("perf_counter", "monotonic"):  # however busy the machine is
                patched.setattr(f"time.{name}", lambda: 0.01 * next(readings))
            run = onsight.train(images, out=str(first), device=str(DEVICE), budget="6s", **fields)
        onsight.train(images, out=str(second), config_file=first / "config.toml")
        machine.check()
    assert run.results["epochs"] > 1
    assert "not replayed" not in capsys.readouterr().err
    assert machine.record.launches["replay of a graph"] > 0
    weights = [load_file(folder / "model.safetensors") for folder in (first, second)]
    assert all(tensor.equal(weights[1][name]) for name, tensor in weights[0].items())


def test_explain_names_phases(machine_off, run_folder, files, capsys, monkeypatch):
    monkeypatch.setattr(ceilings, "_GPU_SIZES", (64,))  # others take the CPU half a minute
    with machine_off() as machine:
        words = ("--device", DEVICE, "--no-what-ifs", "--cuda-graph", "on", "--seconds", 0.3)
        found = said(capsys, "explain", run_folder, *words)
        machine.check()
    assert str(DEVICE) in found
