"""Oracles: a fake clock for the budget, arithmetic, and the first of two runs for the second."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import onsight
from onsight.choice import Choice
from onsight.config import make_config
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.deadline import Deadline
from onsight.errors import BudgetTooSmall, ConfigError, Interrupted
from onsight.ranks.world import World
from onsight.report.console import Reporter, SilentReporter
from onsight.tensorfile import read_tensors
from onsight.training import blend_members, fit, layout, pacers, place, save_run, trainer
from onsight.training import job as jobs
from onsight.training.decisions import read_decisions
from onsight.training.pacers import Segment
from onsight.tune.fit_epochs import reserve_evaluation

LENET = {"model": "lenet", "image_size": "16", "batch_size": 16, "threads": 1}


class Clock:
    """Seconds spent, set by the test; each look takes `tick` seconds."""

    def __init__(self, now=2.0, tick=0.0):
        self.now = now
        self.tick = tick

    def __call__(self):
        self.now += self.tick
        return self.now


class Images:
    """A dataset of so many images in each part."""

    def __init__(self, training, validation, test):
        self.counts = {TRAIN: training, VALIDATION: validation, TEST: test}

    def ids(self, split):
        return range(self.counts[split])


def train(data, out, **fields):
    return onsight.train(data, out=out, reporter=SilentReporter(), **fields)


def assert_same_model(run, other):
    tensors, others = (read_tensors(path / "model.safetensors")[0] for path in (run, other))
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    tables = [(path / "predictions.csv").read_text() for path in (run, other)]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("bad", ["90", "5 m", "-3s", "h", "1d", "0s", "0.0m"])
def test_a_budget_that_is_no_positive_time_is_refused(bad):
    with pytest.raises(ConfigError, match="90s, 5m or 2h"):
        make_config({"budget": bad})


@pytest.mark.parametrize(
    ("elapsed_seconds", "process_seconds", "runnable", "closing_seconds"),
    [
        (10.0, 99.0, 98.0, 11.0),  # a little more than starting took
        (40.0, 10.0, 10.0, 11.0),  # a run that was restarted has an older clock than its process
        (12.0, 12.0, 4.0, 4.4),  # eight seconds were spent waiting for the disk
        (1.0, 1.0, 1.0, 1.5),
    ],
)
def test_time_is_set_aside_to_close_the_run(
    monkeypatch, elapsed_seconds, process_seconds, runnable, closing_seconds
):
    monkeypatch.setattr(jobs, "seconds_since_start", lambda: process_seconds)
    monkeypatch.setattr(jobs, "runnable_seconds", lambda: runnable)
    deadline = Deadline(60, Clock(elapsed_seconds))
    jobs.reserve_closing(deadline, World())
    assert deadline.remaining() == pytest.approx(60 - elapsed_seconds - closing_seconds)


@pytest.mark.parametrize(("process_seconds", "start"), [(5000.0, 20.0), (3.0, 3.0)])
def test_a_run_lasts_from_its_call_to_its_end_however_old_its_process_is(
    bars, tmp_path, monkeypatch, process_seconds, start
):
    monkeypatch.setattr(jobs, "seconds_since_start", lambda: process_seconds)
    clock = Clock(20.0)
    monkeypatch.setattr(save_run, "save_model", lambda *_: setattr(clock, "now", 30.0))
    run = train(bars, tmp_path / "run", spent=clock, epochs=1, folds=1, **LENET)
    assert run.results["phases"]["start"] == start
    assert run.results["seconds"] == 30


def test_every_rank_sets_the_same_time_aside_as_the_first(monkeypatch):
    monkeypatch.setattr(jobs, "seconds_since_start", lambda: 99.0)
    deadline, world = Deadline(60, Clock(30.0)), World()
    monkeypatch.setattr(world, "agree", lambda value: 10.0)
    jobs.reserve_closing(deadline, world)
    assert deadline.reserved() == pytest.approx(11)


def test_time_is_set_aside_for_evaluating_and_for_the_detector():
    deadline = Deadline(60, Clock(10.0))
    config = make_config({})
    assert reserve_evaluation(deadline, config, Images(500, 100, 900), 0.004) == 100
    # 900 images are tested, and 200 set the threshold of the detector.
    assert deadline.remaining() == pytest.approx(60 - 10 - (900 + 200) * 0.004)


@pytest.mark.parametrize(
    ("validation", "image_seconds", "images"),
    [(1000, 0.2, int(0.1 * (100 - 20) / 0.2)), (10, 0.2, 10), (1000, 0.8, 0)],
)
def test_validation_takes_at_most_a_tenth_of_the_time(validation, image_seconds, images):
    deadline = Deadline(100, Clock(0.0))
    config = make_config({})
    data = Images(500, validation, 100)
    assert reserve_evaluation(deadline, config, data, image_seconds) == images


def test_a_part_that_is_too_short_is_explained_with_the_seconds_of_the_run():
    clock = Clock(0.0)
    whole = Deadline(30, clock)
    whole.reserve("closing", 2)
    clock.now = 20
    part = whole.part(0.5)
    part.reserve("evaluation", 5)
    phases = {"start": 9.0, "decode": 12.0}
    job = Mock(deadline=part, world=World(), phases=phases, has_weights=False, is_optional=False)
    told = "20.0 s are spent, 12.0 s of them on decoding.* need at least 26.0 s; try --budget 92s"
    with pytest.raises(BudgetTooSmall, match=told):
        place._require_seconds(19.0, make_config({"budget": "30s"}), job)


def test_a_budget_that_leaves_no_time_to_train_is_extended_by_at_most_half():
    """A tenth of it is for training, in a part and thus in the whole."""
    clock, reporter = Clock(0.0), Mock(SilentReporter)
    whole = Deadline(30, clock)
    whole.reserve("closing", 6)
    clock.now = 20
    part = whole.part(0.5)
    clock.now = 24
    job = Mock(deadline=part, reporter=reporter, has_weights=False, is_optional=True)
    job.world, job.phases = World(), {}
    assert part.remaining() == -2
    with pytest.raises(BudgetTooSmall):  # the run has a model without this training
        place._require_seconds(1.0, make_config({"budget": "30s"}), job)
    assert (part.remaining(), whole.seconds) == (-2, 30)
    job.is_optional = False
    place._require_seconds(1.0, make_config({"budget": "30s"}), job)
    assert part.remaining() == 4
    assert (whole.seconds, whole.budget_seconds) == (36, 30)
    told = "budget: 24.0 s are spent before training, so the run will take about 36.0 s"
    reporter.warn.assert_called_once_with(told)
    assert not whole.extend(9.5)
    assert whole.seconds == 36


@pytest.mark.parametrize(
    ("schedule", "stagnant_fraction"),  # 0: always stagnant, 100: never
    [
        ("one-cycle", 0.0),
        ("cosine", 100.0),
        pytest.param("one-cycle", 100.0, marks=pytest.mark.soak),
        pytest.param("cosine", 0.0, marks=pytest.mark.soak),
    ],
)
def test_a_run_ends_with_its_budget_or_without_gain_and_with_a_low_learning_rate(
    bars, tmp_path, monkeypatch, capsys, schedule, stagnant_fraction
):
    monkeypatch.setattr(pacers, "_STAGNANT_FRACTION", stagnant_fraction)
    monkeypatch.setattr(pacers, "_MIN_STAGNANT_SECONDS", 0.0)
    clock = Clock(1.0, tick=0.01)
    monkeypatch.setattr(time, "perf_counter", Clock(tick=1e-4))  # whatever the machine's load
    path = tmp_path / "run"
    fields = {**LENET, "learning_rate": 0.01, "schedule": schedule}
    run = onsight.train(bars, out=path, reporter=Reporter(), budget="8s", spent=clock, **fields)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) > 2
    assert rows[-1]["learning_rate"] < 0.01 * 0.02
    assert max(row["learning_rate"] for row in rows) > 0.005
    is_early = "early: validation no longer improved" in capsys.readouterr().err
    assert is_early == (stagnant_fraction == 0)
    assert (clock.now <= 0.9 * (8 - 1.5)) == is_early
    assert clock.now <= 8
    assert run.results["accuracy"] is not None
    assert tomllib.loads((path / "config.toml").read_text())["budget"] == "8s"


class Script(pacers.Pacer):
    """A pacer that reads its segments from a list."""

    def __init__(self, segments):
        self.segments = segments

    def next_segment(self, progress):
        return self.segments.pop(0) if self.segments else None

    def must_stop(self):
        return False


def test_an_evaluation_after_the_last_epoch_completes_its_row(bars, tmp_path, monkeypatch):
    def script(planned, data, images, *others):
        steps = data.loader.steps
        return Script([Segment(steps, 0, steps, evaluate=0), Segment(0, 0, 1, evaluate=images)])

    monkeypatch.setattr(fit, "_make_pacer", script)
    path = train(bars, tmp_path / "run", folds=1, budget="60s", **LENET).path
    (row,) = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert row["validation_images"] > 0
    assert row["validation_accuracy"] is not None
    assert row["train_loss"] > 0


def test_an_epoch_after_an_evaluation_within_one_begins_with_its_own_batches(
    bars, tmp_path, monkeypatch
):
    trainers, ids = [], []
    real = trainer.Trainer._train_step

    def train_step(training, batch, *args):
        trainers.append(training)
        ids.append(batch.ids.tolist())
        real(training, batch, *args)

    def script(planned, data, images, *others):
        return Script([Segment(2, 0, 9, evaluate=images), Segment(3, 2, 9, evaluate=images)])

    monkeypatch.setattr(trainer.Trainer, "_train_step", train_step)
    monkeypatch.setattr(fit, "_make_pacer", script)
    train(bars, tmp_path / "run", folds=1, budget="60s", **LENET)
    data = trainers[0].data
    epochs = [data.loader.epoch(data.seed, epoch) for epoch in (0, 1)]
    expected = [next(epochs[epoch]).ids.tolist() for epoch in (0, 0, 1, 1, 1)]
    assert ids == expected


@pytest.mark.parametrize(
    "fields",
    [{"folds": 2}, {"folds": 1, "ema": 0.9, "test_each_epoch": True}],
    ids=["folds", "average"],
)
def test_a_budgeted_run_is_repeated_bit_for_bit(bars, tmp_path, capsys, fields):
    fields = {**LENET, **fields}
    first = train(bars, tmp_path / "first", budget="9s", spent=Clock(1.0, tick=0.05), **fields)
    assert first.results["epochs"] > 1
    slower = Clock(1.0, tick=3.0)  # by which the budget would be over at once
    config_file = first.path / "config.toml"
    again = onsight.train(
        bars, out=tmp_path / "again", config_file=config_file, spent=slower, reporter=Reporter()
    )
    assert f"decisions: repeated from {first.path}" in capsys.readouterr().err
    assert_same_model(first.path, again.path)
    third = train(bars, tmp_path / "third", config_file=again.path / "config.toml", spent=slower)
    assert_same_model(first.path, third.path)


def test_a_budgeted_head_is_repeated_bit_for_bit(bars, tmp_path, backbone):
    fields = {"model": "test_resnet", "weights": str(backbone.model), "freeze": True}
    fields |= {"image_size": 16, "threads": 1, "folds": 1, "cache_folder": "none"}
    first = train(bars, tmp_path / "first", budget="30s", spent=Clock(1.0, tick=0.1), **fields)
    decided = read_decisions(first.path)
    assert decided["plain training features"] > 0
    again = train(bars, tmp_path / "again", config_file=first.path / "config.toml")
    assert_same_model(first.path, again.path)
    fewer = tmp_path / "fewer"
    shutil.copytree(first.path, fewer)
    with (fewer / "decisions.jsonl").open("a") as file:
        for view in ("plain", "mirrored"):
            line = {"decision": f"{view} training features", "value": 32}
            file.write(json.dumps(line) + "\n")
    other = train(bars, tmp_path / "other", config_file=fewer / "config.toml")
    assert not read_tensors(other.model)[0]["all_layers_head.weight"].equal(
        read_tensors(first.model)[0]["all_layers_head.weight"]
    )


def test_a_segment_on_record_that_exceeds_its_epoch_is_refused(bars, tmp_path):
    fields = {**LENET, "budget": "6s", "folds": 1}
    first = train(bars, tmp_path / "first", spent=Clock(1.0, tick=0.05), **fields)
    longer = {"steps": 1000, "position": 0, "total_steps": 1000, "evaluate": 0}
    with (first.path / "decisions.jsonl").open("a") as file:
        file.write(json.dumps({"decision": "segment 0", "value": longer}))
    with pytest.raises(ConfigError, match="first/decisions.jsonl has been changed: segment 0 is"):
        train(bars, tmp_path / "again", config_file=first.path / "config.toml")


class StopAfter:
    """Stops a run as a signal does, after so many steps."""

    def __init__(self, monkeypatch, steps):
        self.left = steps
        self.real = trainer.Trainer._train_step
        monkeypatch.setattr(trainer.Trainer, "_train_step", lambda *args: self.step(*args))

    def step(self, training, *args):
        self.real(training, *args)
        self.left -= 1
        if self.left == 0:
            training.world.stop.signal_number = 15


OTHER_STOPS = [(7, True), (16, True), (40, True), (17, False)]


@pytest.mark.parametrize(
    ("steps", "is_kept"),
    [
        *((1, True), (17, True), (7, False)),
        *(pytest.param(*stop, marks=pytest.mark.soak) for stop in OTHER_STOPS),
    ],
)
def test_a_stopped_budgeted_run_resumes_to_what_its_record_repeats(
    bars, tmp_path, monkeypatch, steps, is_kept
):
    clock = Clock(1.0, tick=0.05)
    with monkeypatch.context() as patched:
        StopAfter(patched, steps)
        with pytest.raises(Interrupted):
            train(bars, tmp_path / "run", budget="9s", spent=clock, folds=1, **LENET)
    if not is_kept:  # the checkpoint has a copy
        (tmp_path / "run" / "decisions.jsonl").unlink()
    later = Clock(1.0, tick=0.05)
    resumed = train(bars, tmp_path / "run", resume=True, spent=later)
    assert resumed.results["images"] > 0
    assert clock.now + later.now <= 9
    again = train(bars, tmp_path / "again", config_file=resumed.path / "config.toml")
    assert_same_model(resumed.path, again.path)


def test_a_restarted_run_goes_on_to_the_end_of_its_budget(bars, tmp_path, monkeypatch):
    """Its clock ran on; no budget is too small for a run that has begun."""
    clock = Clock(1.0, tick=0.02)
    with monkeypatch.context() as patched:
        StopAfter(patched, 40)
        with pytest.raises(Interrupted):
            train(bars, tmp_path / "run", budget="12s", spent=clock, folds=1, **LENET)
    plan = (tmp_path / "run" / "plan.json").read_text()
    clock.now = 9.0
    monkeypatch.setattr(jobs, "seconds_since_start", lambda: 1.0)
    run = train(bars, tmp_path / "run", budget="12s", spent=clock, restarted=True, folds=1, **LENET)
    assert run.results["images"] > 0
    assert 10 < clock.now <= 12  # a second or so is left for closing
    assert (run.path / "plan.json").read_text() == plan


def test_a_run_restarted_after_its_budget_ends_with_what_is_trained(bars, tmp_path, monkeypatch):
    out, fields = tmp_path / "run", {**LENET, "budget": "12s", "folds": 1}
    with monkeypatch.context() as patched:
        StopAfter(patched, 4)
        with pytest.raises(Interrupted):
            train(bars, out, spent=Clock(1.0, tick=0.02), **fields)
    run = train(bars, out, spent=Clock(13.0), restarted=True, **fields)
    (row,) = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert row["train_loss"] > 0
    assert run.results["images"] > 0


def test_a_resumed_run_keeps_the_length_of_its_warm_up(bars, tmp_path, monkeypatch):
    fields = {**LENET, "schedule": "linear", "warmup_epochs": 3, "folds": 1}
    with monkeypatch.context() as patched:
        StopAfter(patched, 7)
        with pytest.raises(Interrupted):
            train(bars, tmp_path / "run", budget="9s", spent=Clock(1.0, tick=0.02), **fields)
    epochs = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["epochs"]
    resumed = train(bars, tmp_path / "run", resume=True, spent=Clock(1.0, tick=0.05))
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["epochs"] == epochs
    again = train(bars, tmp_path / "again", config_file=resumed.path / "config.toml")
    assert_same_model(resumed.path, again.path)


def test_a_run_whose_folder_is_lost_repeats_its_decisions_from_the_mirror(
    bars, tmp_path, monkeypatch
):
    fields = {**LENET, "folds": 1, "checkpoints": str(tmp_path / "mirror")}
    with monkeypatch.context() as patched:
        StopAfter(patched, 17)
        with pytest.raises(Interrupted):
            train(bars, tmp_path / "run", budget="9s", spent=Clock(1.0, tick=0.02), **fields)
    before = read_decisions(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    monkeypatch.setattr(fit, "reserve_evaluation", lambda *args: 3)
    mirror = {"checkpoints": fields["checkpoints"]}
    train(bars, tmp_path / "run", resume=True, spent=Clock(1.0, tick=0.02), **mirror)
    assert read_decisions(tmp_path / "run")["validation images"] == before["validation images"]


def test_a_run_stopped_at_its_first_checkpoint_keeps_its_head(
    bars, tmp_path, monkeypatch, backbone
):
    fields = {"model": "test_resnet", "weights": str(backbone.model), "image_size": 16}
    fields |= {"threads": 1, "folds": 1, "freeze": False, "cache_folder": "none"}

    def stop(training):
        real(training)
        raise Interrupted("stopped", 15)

    real = fit._time_saving
    clock = Clock(1.0, tick=0.2)
    with monkeypatch.context() as patched:
        patched.setattr(fit, "_time_saving", stop)
        with pytest.raises(Interrupted):
            train(bars, tmp_path / "run", budget="40s", spent=clock, **fields)
    run = train(bars, tmp_path / "run", resume=True, spent=clock)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows[:2]] == [0, 1]


@pytest.mark.parametrize(("given", "is_frozen"), [({}, True), ({"freeze": False}, False)])
def test_a_budget_freezes_no_backbone_that_the_user_wants_to_train(
    bars, tmp_path, monkeypatch, backbone, given, is_frozen
):
    monkeypatch.setattr(layout, "choose_freezing", lambda *args: Choice(True, "too few epochs"))
    fields = {"model": "test_resnet", "weights": str(backbone.model), "image_size": 16}
    fields |= {"threads": 1, "folds": 1, "cache_folder": "none"}
    clock = Clock(1.0, tick=0.05)
    run = train(bars, tmp_path / "run", budget="9s", spent=clock, **fields, **given)
    assert tomllib.loads((run.path / "config.toml").read_text())["freeze"] is is_frozen


def test_a_run_that_is_late_says_so(bars, tmp_path, monkeypatch, capsys):
    clock, real = Clock(1.0, tick=0.1), blend_members.evaluate

    def evaluate_slowly(*args):
        clock.now += 12
        return real(*args)

    monkeypatch.setattr(blend_members, "evaluate", evaluate_slowly)
    fields = {**LENET, "reporter": Reporter(), "folds": 1}
    onsight.train(bars, out=tmp_path / "run", budget="9s", spent=clock, **fields)
    assert re.search(r"budget: the run took 1\d(\.\d)? s longer", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"learning_rate": 0.5}, "learning_rate changed"),
        ({"budget": "7s"}, "a budget is given"),
    ],
)
def test_a_run_that_asks_for_something_else_says_why_it_repeats_nothing(
    bars, tmp_path, capsys, changes, reason
):
    first = train(
        bars, tmp_path / "first", budget="6s", spent=Clock(1.0, tick=0.05), folds=1, **LENET
    )
    onsight.train(
        bars,
        out=tmp_path / "again",
        config_file=first.path / "config.toml",
        spent=Clock(1.0, tick=0.05),
        reporter=Reporter(),
        **changes,
    )
    assert f"are not repeated: {reason}" in capsys.readouterr().err


def test_a_run_that_did_not_finish_is_not_repeated(bars, tmp_path, monkeypatch, capsys):
    fields = {**LENET, "budget": "6s", "folds": 1}
    with monkeypatch.context() as patched:
        StopAfter(patched, 16)
        with pytest.raises(Interrupted):
            train(bars, tmp_path / "first", spent=Clock(1.0, tick=0.05), **fields)
    onsight.train(
        bars,
        out=tmp_path / "again",
        config_file=tmp_path / "first" / "config.toml",
        spent=Clock(1.0, tick=0.05),
        reporter=Reporter(),
    )
    assert "are not repeated: that run did not finish" in capsys.readouterr().err


def test_decisions_are_not_repeated_on_other_images(bars, tmp_path, capsys):
    first = train(
        bars, tmp_path / "first", budget="6s", spent=Clock(1.0, tick=0.05), folds=1, **LENET
    )
    next((bars / "down").glob("*.png")).unlink()
    clock = Clock(1.0, tick=0.05)
    onsight.train(
        bars,
        out=tmp_path / "again",
        config_file=first.path / "config.toml",
        spent=clock,
        reporter=Reporter(),
    )
    assert "are not repeated: the images differ" in capsys.readouterr().err
    assert 3 < clock.now <= 6  # which the budget of the settings limits


@pytest.mark.soak
def test_ranks_with_different_clocks_make_the_same_steps(bars, tmp_path):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).with_name("budgeted.py")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

    def run(folder, *config):
        command = [sys.executable, *launcher, script, bars, tmp_path / folder, *config]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
        assert done.returncode == 0, done.stderr
        return [
            json.loads((tmp_path / folder / f"rank-{rank}.json").read_text()) for rank in range(2)
        ]

    first, second = run("first")
    assert 50 < first.pop("clock") <= 60
    second.pop("clock")
    assert first == second
    assert first["images"] > 96
    assert (tmp_path / "first" / "run" / "model.safetensors").exists()
    run("again", tmp_path / "first" / "run" / "config.toml")
    assert_same_model(tmp_path / "first" / "run", tmp_path / "again" / "run")


@pytest.mark.soak
@pytest.mark.parametrize("moment", range(1, 21))
def test_a_run_killed_at_any_moment_resumes_to_what_its_record_repeats(bars, tmp_path, moment):
    out, fields = tmp_path / "run", "--model lenet --image-size 16 --batch-size 16 --threads 1"
    command = [sys.executable, "-m", "onsight", "train"]
    start = [*command, str(bars), *fields.split(), "--budget", "12s", "--out", str(out)]
    running = subprocess.Popen(start, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    for _ in range(1200):  # a minute, as starting may take long on a busy machine
        if (out / "decisions.jsonl").exists():
            break
        time.sleep(0.05)
    time.sleep(moment * 0.3)
    running.kill()
    running.communicate()
    subprocess.run([*command, str(bars), "--out", str(out), "--resume"], check=True)
    again = [
        *command,
        str(bars),
        "--config",
        str(out / "config.toml"),
        "--out",
        str(tmp_path / "b"),
    ]
    done = subprocess.run(again, check=True, capture_output=True, text=True)
    assert "not repeated" not in done.stderr
    assert_same_model(out, tmp_path / "b")
