"""What is recorded during training: lines, rows, TensorBoard, and a model file for every epoch."""

import json
import signal

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

import onsight
from onsight.errors import Interrupted
from onsight.ranks import world
from onsight.report import page
from onsight.report.console import SilentReporter
from onsight.step.step import Step
from onsight.tensorfile import read_tensors
from onsight.training import evaluate
from onsight.training.loggers.logger import LoggedRun
from onsight.training.loggers.loggers import Loggers

TAGS = {
    "loss/train": "train_loss",
    "loss/validation": "validation_loss",
    "accuracy/validation": "validation_accuracy",
    "loss/test": "test_loss",
    "accuracy/test": "test_accuracy",
    "learning_rate": "learning_rate",
    "images_per_second": "images_per_second",
}
SETTINGS = {
    "model": "lenet",
    "image_size": "16",
    "batch_size": 20,  # 5 steps per epoch: the last makes no line
    "epochs": 3,
    "threads": 1,
    "log_every_steps": 2,
    "test_each_epoch": True,
    "keep_epochs": True,
}


class StopAfter:
    """A stop request that is made after the given number of steps."""

    signal_number = signal.SIGTERM

    def __init__(self, steps):
        self.steps = steps

    def __bool__(self):
        self.steps -= 1
        return self.steps <= 0


def train(bars, out, **fields):
    return onsight.train(bars, out=out, reporter=SilentReporter(), **SETTINGS | fields)


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def scalars_of(folder):
    """(step, value) of each tag."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(scalar.step, scalar.value) for scalar in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def log_in(folder, rows, steps):
    """The loggers of a run, of which only TensorBoard is on."""
    loggers = Loggers(["tensorboard"], pytest.fail)
    loggers.start(LoggedRun(folder, "bars", {}))
    loggers.begin(len(rows), steps)
    return loggers


def weights_of(run):
    return read_tensors(run / "model.safetensors")[0]


@pytest.fixture(scope="module", autouse=True)
def files_in_order():
    """TensorBoard sorts files made in the same second by a counter, as text: 10 before 9."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))
        yield


def note_losses(patch):
    """The list in which the loss of every step will be noted, as the step itself returns it."""
    losses = []
    real = Step.__call__

    def noted(self, *batch):
        losses.append(real(self, *batch))
        return losses[-1]

    patch.setattr(Step, "__call__", noted)
    return losses


STOPS = {"in one go": 0, "stopped in an epoch": 9, "stopped after an epoch": 10}


@pytest.fixture(scope="module", params=STOPS)
def recording(request, shared_bars, tmp_path_factory, files_in_order):
    """A run, whole or stopped and resumed, and the losses of its steps; nobody changes it."""
    out = tmp_path_factory.mktemp("recorded") / "run"
    stop_at = STOPS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "write_report", lambda run: run / "report.html")
        losses = note_losses(patch)
        if not stop_at:
            return train(shared_bars, out), losses
        with pytest.MonkeyPatch.context() as stopping:
            stopping.setattr(world, "StopRequest", lambda: StopAfter(stop_at))
            with pytest.raises(Interrupted):
                train(shared_bars, out)
        resumed = onsight.train(shared_bars, out=out, resume=True, reporter=SilentReporter())
    return resumed, losses


@pytest.fixture
def recorded(recording):
    return recording[0]


@pytest.fixture
def step_losses(recording):
    return recording[1]


def test_tensorboard_equals_the_rows_and_the_lines(recorded, step_losses):
    rows = rows_of(recorded.path)
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    scalars = scalars_of(recorded.path / "tensorboard")
    assert scalars.keys() == TAGS.keys()
    for tag, name in TAGS.items():
        assert [step for step, _ in scalars[tag]] == [1, 2, 3], tag
        values = [value for _, value in scalars[tag]]
        assert values == pytest.approx([row[name] for row in rows], rel=1e-6), tag

    lines = [(row["epoch"], line) for row in rows for line in row["lines"]]
    steps = len(step_losses) // 3
    scalars = scalars_of(recorded.path / "tensorboard" / "steps")
    expected = [(epoch - 1) * steps + line["step"] for epoch, line in lines]
    for tag, name in [("loss/train", "loss"), ("seconds", "seconds")]:
        assert [step for step, _ in scalars[tag]] == expected
        values = [value for _, value in scalars[tag]]
        assert values == pytest.approx([line[name] for _, line in lines], rel=1e-6)


def test_a_line_is_the_mean_of_its_steps(recorded, step_losses):
    rows = rows_of(recorded.path)
    steps = len(step_losses) // 3
    assert len(step_losses) == 3 * steps
    for row in rows:
        own = step_losses[(row["epoch"] - 1) * steps : row["epoch"] * steps]
        assert [line["step"] for line in row["lines"]] == list(range(2, steps + 1, 2))
        for line in row["lines"]:
            mean = np.mean(own[line["step"] - 2 : line["step"]])
            assert line["loss"] == pytest.approx(mean, rel=1e-12)
    seconds = [line["seconds"] for row in rows for line in row["lines"]]
    assert seconds == sorted(seconds)


def test_a_killed_run_leaves_no_point_that_is_recorded_again_on_resuming(tmp_path):
    rows = [{"epoch": epoch, "train_loss": float(epoch)} for epoch in (1, 2, 3)]
    first = log_in(tmp_path, [], 0)
    for row in rows:
        first.log_epoch(row)
        first.log_line({"loss": -1.0, "seconds": 1.0}, 5 * row["epoch"])
    first.close(finished=False)
    again = log_in(tmp_path, rows[:1], 5)  # its last checkpoint was after the first epoch
    again.log_line({"loss": 2.0, "seconds": 2.0}, 10)
    again.log_epoch({"epoch": 2, "train_loss": 20.0})
    again.close(finished=True)
    scalars = scalars_of(tmp_path / "tensorboard")
    assert scalars["loss/train"] == [(1, 1.0), (2, 20.0)]
    assert scalars_of(tmp_path / "tensorboard" / "steps")["loss/train"] == [(5, -1.0), (10, 2.0)]


def test_every_epochs_model_file_is_that_epochs_network(recorded, bars):
    rows = rows_of(recorded.path)
    files = sorted((recorded.path / "checkpoints").glob("epoch-*"))
    assert [file.name for file in files] == [f"epoch-{n:02d}.safetensors" for n in (1, 2, 3)]
    for file, row in zip(files, rows, strict=True):
        found = onsight.evaluate(file, bars)
        assert found["images"] == row["test_images"]
        assert found["accuracy"] == row["test_accuracy"]
    best = recorded.results["best_epoch"]
    kept, last = read_tensors(files[best - 1])[0], weights_of(recorded.path)
    assert all(torch.equal(kept[name], tensor) for name, tensor in last.items())
    images = sorted(bars.rglob("*.png"))[:20]
    own, plain = onsight.load(recorded.path), onsight.load(files[best - 1])
    assert own.predict(images) == plain.predict(images)


def test_testing_each_epoch_influences_no_choice(bars, tmp_path):
    tested = train(bars, tmp_path / "tested")
    silent = train(bars, tmp_path / "silent", test_each_epoch=False)
    assert "test_accuracy" in rows_of(tested.path)[0]
    assert "test_accuracy" not in rows_of(silent.path)[0]
    assert tested.results["best_epoch"] == silent.results["best_epoch"]
    assert tested.results["confusion"] == silent.results["confusion"]
    mine, theirs = weights_of(tested.path), weights_of(silent.path)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_counts_do_not_depend_on_the_batch_size_of_the_evaluation(
    bars, tmp_path, monkeypatch, batch
):
    monkeypatch.setattr(evaluate, "evaluation_batch_size", lambda *_: batch)
    run = train(bars, tmp_path / "run", epochs=1)
    results = run.results
    truth = [row["images"] for row in results["classes"]]
    assert [sum(row) for row in results["confusion"]] == truth
    assert sum(truth) == results["images"] == 12
    assert len((run.path / "predictions.csv").read_text().splitlines()) == 1 + 12


def test_saved_weights_predict_the_same_bits(bars, tmp_path):
    run = train(bars, tmp_path / "run", epochs=1)
    for name in ("once.csv", "twice.csv"):
        found = onsight.evaluate(run.path, bars, csv=tmp_path / name)
        assert found["confusion"] == run.results["confusion"]
        assert (tmp_path / name).read_text() == (run.path / "predictions.csv").read_text()
