"""Whole runs on small real PNG files, from the first line of output to the run folder's files."""

import copy
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from portable import THREADS
from torch import nn

import onsight
from onsight.errors import (
    ConfigError,
    DataError,
    Interrupted,
    ModelError,
    NonFiniteLoss,
    OutputError,
    UserError,
)
from onsight.ranks import world
from onsight.report.console import Bar, Reporter, SilentReporter
from onsight.step.step import Step
from onsight.tensorfile import read_tensors
from onsight.training import run as run_module
from onsight.training.run_folder import claim_folder

FAST = {"epochs": 3, "batch_size": 16, "threads": THREADS, "reporter": SilentReporter()}


def weights_of(run_folder):
    tensors, _ = read_tensors(Path(run_folder) / "model.safetensors")
    return tensors


def rows_of_csv(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def rows_of_metrics(run_folder):
    text = (run_folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def assert_equal_weights(one, other):
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_results_and_advice_name_the_data_as_the_user_did(bars, monkeypatch, capsys):
    image = next((bars / "down").glob("*.png"))
    shutil.copy(image, image.with_name("copy.png"))
    monkeypatch.chdir(bars.parent)
    run = onsight.train(bars.name, out="run", **FAST | {"epochs": 1, "reporter": Reporter()})
    assert run.results["data"] == bars.name
    assert f"`onsight check {bars.name}`" in capsys.readouterr().err


def test_the_share_of_waiting_is_one_from_the_first_step_on(bars, tmp_path, monkeypatch):
    shares = []

    def collect(bar, count, facts=dict):
        shares.append(facts().get("waiting for data", 0.0))

    monkeypatch.setattr(Bar, "advance", collect)
    onsight.train(bars, out=tmp_path / "run", **FAST | {"epochs": 1})
    assert any(shares)
    assert all(0 <= share <= 1 for share in shares)


def test_a_resumed_run_does_not_call_its_own_choices_the_users(bars, tmp_path, capsys):
    fields = {"epochs": 1, "batch_size": 16, "threads": THREADS, "verbose": True}
    onsight.train(bars, out=tmp_path / "run", **fields)
    first = capsys.readouterr().err
    assert "epochs: 1 (set by you)" in first
    assert "accumulate: 1 (set by you)" not in first
    onsight.train(bars, out=tmp_path / "run", resume=True, verbose=True)
    assert "set by you" not in capsys.readouterr().err


def test_a_run_leaves_all_its_files(trained):
    names = {path.name for path in trained.path.iterdir()}
    assert names >= {
        "config.toml",
        "plan.json",
        "environment.json",
        "metrics.jsonl",
        "tensorboard",
        "problems.csv",
        "predictions.csv",
        "results.json",
        "checkpoints",
        "model.safetensors",
        "report.html",
    }
    assert not list(trained.path.rglob("*.tmp"))


@pytest.mark.needs_learned("the test is that it learns")
def test_it_learns_and_its_numbers_agree_with_each_other(trained):
    results = trained.results
    assert trained.accuracy == results["accuracy"] >= 0.9
    assert results["accuracy_low"] < results["accuracy"] <= results["accuracy_high"]
    assert results["used"] == 120
    assert results["problems"] == 0
    rows = rows_of_csv(trained.path / "predictions.csv")
    assert len(rows) == results["images"] == sum(map(sum, results["confusion"]))
    right = sum(row["label"] == row["predicted"] for row in rows)
    assert right / len(rows) == results["accuracy"]
    metrics = rows_of_metrics(trained.path)
    assert [row["epoch"] for row in metrics] == [1, 2, 3]
    assert metrics[-1]["train_loss"] < metrics[0]["train_loss"]


def test_tensorboard_agrees_with_metrics_jsonl(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained.path / "tensorboard"))
    events.Reload()
    metrics = rows_of_metrics(trained.path)
    for tag, name in [("loss/train", "train_loss"), ("accuracy/validation", "validation_accuracy")]:
        scalars = events.Scalars(tag)
        assert [scalar.step for scalar in scalars] == [row["epoch"] for row in metrics]
        for scalar, row in zip(scalars, metrics, strict=True):
            assert scalar.value == pytest.approx(row[name], rel=1e-6)


@pytest.mark.parametrize(
    "fields",
    [
        {"ema": 0.9, "mixup": 0.2, "cutmix": 0.5, "cutout": 0.3, "jitter": 0.2, "threads": 2},
        {"crop_area": 0.5, "rotate_degrees": 10, "precision": "bf16", "optimizer": "sgd"},
    ],
)
def test_two_runs_give_the_same_bits(bars, tmp_path, fields):
    for name in ("one", "two"):
        onsight.train(bars, out=tmp_path / name, **FAST | {"epochs": 2} | fields)
    assert_equal_weights(tmp_path / "one", tmp_path / "two")


@pytest.mark.needs_learned("a run that learns is compared with it, bit for bit")
def test_the_seed_alone_changes_the_weights(bars, tmp_path, trained):
    onsight.train(bars, out=tmp_path / "again", **FAST)
    assert_equal_weights(trained.path, tmp_path / "again")
    onsight.train(bars, out=tmp_path / "other", **FAST, seed=1)
    first, second = weights_of(trained.path), weights_of(tmp_path / "other")
    assert any(not torch.equal(first[name], second[name]) for name in first)


@pytest.mark.needs_learned("a run that learns is compared with it, bit for bit")
def test_names_folders_and_container_do_not_matter(bars, tmp_path, trained):
    renamed = tmp_path / "renamed"
    for number, path in enumerate(sorted(bars.rglob("*.png"), reverse=True)):
        target = renamed / path.parent.name / "nested" / f"z{number}.bmp"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).save(target)
    archive = shutil.make_archive(str(tmp_path / "zipped"), "zip", renamed)
    onsight.train(archive, out=tmp_path / "archive", **FAST, cache_folder="none")
    assert_equal_weights(trained.path, tmp_path / "archive")


class StopAfter:
    """A stop request that is made after the given number of steps."""

    signal_number = signal.SIGTERM

    def __init__(self, steps):
        self.steps = steps

    def __bool__(self):
        self.steps -= 1
        return self.steps <= 0


RICH = {"ema": 0.9, "optimizer": "muon", "mixup": 0.2}


@pytest.mark.parametrize(
    ("fields", "stops"),
    [
        (RICH, (1, 7, 11)),  # of 12 steps and two evaluations
        pytest.param(RICH, range(1, 13, 2), marks=pytest.mark.soak),
        pytest.param({}, range(1, 13, 2), marks=pytest.mark.soak),
    ],
)
def test_a_run_stopped_at_any_step_resumes_to_the_same_bits(
    bars, tmp_path, monkeypatch, fields, stops
):
    settings = {**FAST, **fields, "epochs": 2}
    whole = onsight.train(bars, out=tmp_path / "whole", **settings)
    metrics = rows_of_metrics(whole.path)
    assert -(-_train_images(whole) // 16) == 6
    for stop_at in stops:
        out = tmp_path / f"stopped-{stop_at}"

        with monkeypatch.context() as patch:
            patch.setattr(world, "StopRequest", lambda after=stop_at: StopAfter(after))
            with pytest.raises(Interrupted, match="--resume") as stopped:
                onsight.train(bars, out=out, **settings)
        assert stopped.value.exit_code == 143
        resumed = onsight.train(bars, out=out, resume=True, reporter=SilentReporter())
        assert_equal_weights(whole.path, out)
        assert resumed.results["confusion"] == whole.results["confusion"]
        again = rows_of_metrics(out)
        assert [row["train_loss"] for row in again] == [row["train_loss"] for row in metrics]


def _train_images(run):
    return sum(row["train_images"] for row in run.results["classes"])


COMMAND = """
import sys
from onsight.cli import main
main(sys.argv[1:])
"""


def command(*words, **options):
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def wait_for(path, process, seconds=60):
    limit = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.fixture(scope="module")
def long_run(shared_bars, train_once):
    return train_once("long", shared_bars, epochs=12, batch_size=16, threads=THREADS)


OTHER_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(number, marks=pytest.mark.soak) for number in OTHER_SIGNALS)],
)
def test_a_killed_process_resumes_to_the_same_bits(bars, tmp_path, long_run, number):
    out = tmp_path / "killed"
    # In a process of its own, nothing keeps a run from folds and from trials of models.
    plain = ["--model", "compact", "--folds", 1, "--threads", THREADS]
    process = command("train", bars, "--epochs", 12, "--batch-size", 16, "--out", out, *plain)
    wait_for(out / "checkpoints" / "last.safetensors", process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    expected = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}
    if process.returncode != 0:  # it may have finished already
        assert process.returncode == expected[number]
        if number != signal.SIGKILL:
            assert "--resume" in err
    onsight.train(bars, out=out, resume=True, reporter=SilentReporter())
    assert_equal_weights(long_run.path, out)


def test_resume_refuses_other_settings_and_other_data(bars, tmp_path, trained):
    out = shutil.copytree(trained.path, tmp_path / "run")
    with pytest.raises(ConfigError, match="epochs would change"):
        onsight.train(bars, out=out, resume=True, reporter=SilentReporter(), epochs=9)
    config = out / "config.toml"
    config.write_text(f'decode_on = "cpu"\n{config.read_text()}')  # of an older version
    onsight.train(bars, out=out, resume=True, reporter=SilentReporter(), epochs=3)
    Image.new("L", (12, 12), 9).save(bars / "across" / "new.png")
    with pytest.raises(DataError, match="the images changed"):
        onsight.train(bars, out=out, resume=True, reporter=SilentReporter())
    with pytest.raises(OutputError, match="nothing to resume"):
        onsight.train(bars, out=tmp_path / "no such", resume=True, reporter=SilentReporter())


@pytest.mark.parametrize("missing", ["", "predictions.csv"])
def test_a_finished_run_is_not_evaluated_again(
    bars, tmp_path, trained, monkeypatch, capsys, missing
):
    out = shutil.copytree(trained.path, tmp_path / "run")
    if missing:
        (out / missing).unlink()
    before = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    evaluated, real = [], run_module.evaluate_model
    monkeypatch.setattr(
        run_module, "evaluate_model", lambda *args: evaluated.append(1) or real(*args)
    )
    again = onsight.train(bars, out=out, resume=True, reporter=Reporter())
    assert again.accuracy == trained.accuracy
    assert len(evaluated) == bool(missing)
    assert ("is finished: there is nothing left to do" in capsys.readouterr().err) != bool(missing)
    if not missing:
        assert {path: path.read_bytes() for path in before} == before
    assert (out / "predictions.csv").exists()


def test_a_folder_in_use_is_refused(bars, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match="already holds files"):
        onsight.train(bars, out=tmp_path / "full", **FAST)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"
    claimed = claim_folder(tmp_path / "run", resume=False)
    with pytest.raises(OutputError, match="in use by another run"):
        claim_folder(tmp_path / "run", resume=True)
    claimed.release()


def test_a_run_that_fails_before_it_begins_leaves_no_folder(bars, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(DataError):
        onsight.train(tmp_path / "no such", out=out, **FAST)
    assert not out.exists()
    spoilt = shutil.copytree(bars, tmp_path / "spoilt")
    for path in spoilt.rglob("*.png"):
        path.write_text("no image")
    with pytest.raises(DataError):  # after what the budget decides
        onsight.train(spoilt, out=out, budget="1h", **FAST)
    assert not out.exists()
    onsight.train(bars, out=out, **FAST)


def test_a_run_killed_while_decoding_keeps_its_settings(bars, tmp_path):
    whole = onsight.train(bars, out=tmp_path / "whole", seed=5, **FAST)
    (tmp_path / "killed").mkdir()  # such a run leaves its config and nothing else
    shutil.copy(whole.path / "config.toml", tmp_path / "killed")
    with pytest.raises(DataError):  # a typo in DATA must not cost the settings
        onsight.train(
            tmp_path / "slip", out=tmp_path / "killed", resume=True, reporter=SilentReporter()
        )
    onsight.train(bars, out=tmp_path / "killed", resume=True, reporter=SilentReporter())
    assert_equal_weights(whole.path, tmp_path / "killed")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match="is not a run folder"):
        onsight.train(bars, out=tmp_path / "foreign", resume=True, reporter=SilentReporter())


class TutorialNet(nn.Module):
    """Reshapes by view(), which needs contiguous images, and ties two weights."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.one = nn.Linear(4 * 144, 8, bias=False)
        self.two = nn.Linear(8, 8, bias=False)
        self.three = nn.Linear(8, 8, bias=False)
        self.three.weight = self.two.weight
        self.last = nn.Linear(8, 2)

    def forward(self, images):
        maps = self.conv(images).relu()
        hidden = self.one(maps.view(maps.size(0), -1))
        return self.last(self.three(self.two(hidden)))


def test_a_tutorials_net_trains_and_ends_with_the_evaluated_weights(bars, tmp_path):
    net = TutorialNet()
    run = onsight.train(bars, out=tmp_path / "run", model=net, ema=0.9, **FAST)
    saved = weights_of(run.path)
    assert all(torch.equal(saved[name], tensor) for name, tensor in net.state_dict().items())
    results = onsight.evaluate(run.path, bars, module=TutorialNet())
    assert results["confusion"] == run.results["confusion"]


def test_a_net_with_the_wrong_number_of_outputs_is_refused(bars, tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 7))
    with pytest.raises(ModelError, match="7 numbers per image, but the data has 2 classes"):
        onsight.train(bars, out=tmp_path / "run", model=net, **FAST)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "no_such_module:Net"}, "there is no module 'no_such_module'"),
        ({"model": "json:Net"}, "has no 'Net'"),
        ({"model": "linear", "optimizer": "lbfgs"}, "no optimizer 'lbfgs'"),
    ],
)
def test_names_are_checked_before_images_are_read(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        onsight.train(tmp_path / "no data", out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", [pytest.param("lamb", marks=pytest.mark.soak), "adafactorbv"])
def test_optimizers_with_unusual_state_resume_to_the_same_bits(bars, tmp_path, monkeypatch, name):
    fields = FAST | {"optimizer": name, "epochs": 2}
    onsight.train(bars, out=tmp_path / "whole", **fields)
    with monkeypatch.context() as patch:
        patch.setattr(world, "StopRequest", lambda: StopAfter(4))
        with pytest.raises(Interrupted):
            onsight.train(bars, out=tmp_path / "stopped", **fields)
    onsight.train(bars, out=tmp_path / "stopped", resume=True, reporter=SilentReporter())
    assert_equal_weights(tmp_path / "whole", tmp_path / "stopped")


def dropping_net():
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.Dropout(0.5), nn.Linear(16, 2))


def test_a_network_with_random_numbers_of_its_own_resumes_to_the_same_bits(
    bars, tmp_path, monkeypatch
):
    whole = dropping_net()
    fresh = [copy.deepcopy(whole) for _ in range(2)]
    onsight.train(bars, out=tmp_path / "whole", model=whole, **FAST)
    with monkeypatch.context() as patch:
        patch.setattr(world, "StopRequest", lambda: StopAfter(5))
        with pytest.raises(Interrupted):
            onsight.train(bars, out=tmp_path / "stopped", model=fresh[0], **FAST)
    torch.rand(100)  # whatever was drawn in between
    onsight.train(
        bars, out=tmp_path / "stopped", model=fresh[1], resume=True, reporter=SilentReporter()
    )
    assert_equal_weights(tmp_path / "whole", tmp_path / "stopped")


def test_a_nan_in_validation_is_a_failure(bars, tmp_path):
    with pytest.raises(NonFiniteLoss):
        onsight.train(bars, out=tmp_path / "run", learning_rate=1e30, **FAST)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_without_validation_or_test_nothing_breaks(bars, tmp_path):
    none = onsight.train(
        bars, out=tmp_path / "none", validation_fraction=0.0, test_fraction=0.0, **FAST
    )
    assert none.accuracy is None
    some = onsight.train(bars, out=tmp_path / "some", test_fraction=0.0, **FAST)
    assert some.results["split"] == "validation"


class Exploding(nn.Module):
    """Returns NaN from the fifth training batch on."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(144, 2)
        self.calls = 0

    def forward(self, images):
        self.calls += self.training
        logits = self.linear(images.flatten(1))
        return logits * float("nan") if self.calls >= 5 else logits


def test_a_nan_stops_the_run_before_the_update(bars, tmp_path):
    net = Exploding()
    before = {}

    def keep(module, inputs):
        before.update({name: t.clone() for name, t in module.state_dict().items()})

    net.register_forward_pre_hook(keep)
    with pytest.raises(NonFiniteLoss, match=r"epoch 1, step 5 of .*\.png") as caught:
        onsight.train(bars, out=tmp_path / "run", model=net, **FAST)
    assert "not updated" in str(caught.value)
    assert all(torch.equal(before[name], t) for name, t in net.state_dict().items())


class Spoiling(nn.Module):
    """Its fifth training batch has a finite loss and gradients that are NaN."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(144, 2)
        self.calls = 0

    def forward(self, images):
        self.calls += self.training
        logits = self.linear(images.flatten(1))
        if self.training and self.calls == 5:
            logits.register_hook(lambda gradient: gradient * float("nan"))
        return logits


def test_a_nan_in_a_gradient_stops_the_run_before_the_update(bars, tmp_path):
    net = Spoiling()
    with pytest.raises(NonFiniteLoss, match=r"gradients are not at epoch 1, step 5 of .*\.png"):
        onsight.train(bars, out=tmp_path / "run", model=net, **FAST)
    assert all(one.isfinite().all() for one in net.parameters())


SPOILED = r"gradients of epoch 1, step 5 of \d+ are not finite, though its loss is.*\.png"


@pytest.fixture
def unguarded(monkeypatch):
    """As on an accelerator, where looking at every gradient would mean waiting for it."""
    monkeypatch.setattr(Step, "_check_gradients", lambda step: None)


def test_a_nan_in_a_gradient_is_blamed_on_its_own_step(bars, tmp_path, unguarded):
    with pytest.raises(NonFiniteLoss, match=SPOILED):
        onsight.train(bars, out=tmp_path / "run", model=Spoiling(), **FAST)


@pytest.mark.parametrize("ends", [StopAfter(5), StopAfter(100)])
def test_weights_that_a_gradient_has_spoiled_are_not_saved(
    bars, tmp_path, monkeypatch, unguarded, ends
):
    """Neither when the run is stopped then, nor as the best when it was the step of an epoch."""
    monkeypatch.setattr(world, "StopRequest", lambda: ends)
    fields = {**FAST, "validation_fraction": 0.0, "batch_size": 22, "epochs": 1}
    with pytest.raises(NonFiniteLoss, match=SPOILED):
        onsight.train(bars, out=tmp_path / "run", model=Spoiling(), **fields)
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_training_stops_early_when_validation_no_longer_improves(bars, tmp_path):
    fields = {**FAST, "epochs": 50, "patience_epochs": 2, "model": "lenet"}
    run = onsight.train(bars, out=tmp_path / "run", learning_rate=1e-12, **fields)
    assert run.results["epochs"] == 3


def test_the_best_epoch_is_kept(trained):
    metrics = rows_of_metrics(trained.path)
    best = max(metrics, key=lambda r: (r["validation_accuracy"], -r["validation_loss"]))
    assert trained.results["best_epoch"] == best["epoch"]


def test_class_weights_freezing_and_the_tutorials_loss_can_be_used(bars, tmp_path):
    onsight.train(
        bars, out=tmp_path / "a", class_weights="balanced", loss="mse", clip_norm=1.0, **FAST
    )
    onsight.train(bars, out=tmp_path / "b", model="test_resnet", freeze=True, accumulate=3, **FAST)


def test_a_saved_config_repeats_the_run(bars, tmp_path, trained):
    onsight.train(
        bars,
        out=tmp_path / "again",
        config_file=trained.path / "config.toml",
        reporter=SilentReporter(),
    )
    assert_equal_weights(trained.path, tmp_path / "again")


def test_the_users_files_are_not_touched(bars, tmp_path):
    def state():
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(bars.rglob("*"))}

    before = state()
    onsight.train(bars, out=tmp_path / "run", **FAST)
    assert state() == before


def test_every_file_is_used_or_listed(bars, tmp_path):
    (bars / "across" / "notes.txt").write_text("no image")
    (bars / "down" / "empty.png").write_bytes(b"")
    (bars / "down" / "cut.png").write_bytes((bars / "down" / "000.png").read_bytes()[:60])
    (bars / "stray.png").write_bytes((bars / "down" / "000.png").read_bytes())
    run = onsight.train(bars, out=tmp_path / "run", **FAST)
    rows = rows_of_csv(run.path / "problems.csv")
    assert {row["path"] for row in rows} == {
        "across/notes.txt",
        "down/empty.png",
        "down/cut.png",
        "stray.png",
    }
    assert all(row["reason"] and row["stage"] for row in rows)
    present = sum(path.is_file() for path in bars.rglob("*"))
    assert run.results["used"] + run.results["problems"] == present
    with pytest.raises(DataError, match=r"stray\.png|notes\.txt|empty\.png|cut\.png"):
        onsight.train(bars, out=tmp_path / "strict", strict=True, **FAST)


@pytest.mark.needs_learned("a run that learns is compared with it, bit for bit")
def test_disk_full_while_saving_keeps_the_last_checkpoint(bars, tmp_path, trained, monkeypatch):
    import errno

    from onsight.errors import DiskError
    from onsight.training import checkpoint

    saves = []
    real = os.fsync
    real_save = checkpoint.write_tensors

    def counted(path, *args):
        saves.append(path.name)
        if len(saves) == 4:

            def refuse(descriptor):
                raise OSError(errno.ENOSPC, "No space left on device")

            monkeypatch.setattr(os, "fsync", refuse)
        real_save(path, *args)

    monkeypatch.setattr(checkpoint, "write_tensors", counted)
    with pytest.raises(DiskError, match="no space left"):
        onsight.train(bars, out=tmp_path / "full", **FAST)
    monkeypatch.setattr(os, "fsync", real)
    monkeypatch.setattr(checkpoint, "write_tensors", real_save)
    onsight.train(bars, out=tmp_path / "full", resume=True, reporter=SilentReporter())
    assert_equal_weights(trained.path, tmp_path / "full")


def test_tiny_classes_are_used_and_noted(bars, tmp_path):
    rng = np.random.default_rng(0)
    for name, count in {"one": 1, "three": 3}.items():
        (bars / name).mkdir()
        for number in range(count):
            pixels = rng.integers(0, 255, (12, 12), np.uint8)
            Image.fromarray(pixels).save(bars / name / f"{number}.png")
    run = onsight.train(bars, out=tmp_path / "run", **FAST)
    notes = " ".join(run.results["notes"])
    assert re.search(r"one \([01] of 1\)", notes)
    assert re.search(r"three \([0-3] of 3\)", notes)
