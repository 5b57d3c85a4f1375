"""Oracles: runs of one model each, probabilities averaged in float64, runs without interruption."""

import re
import shutil
import signal
import time
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

import onsight
from onsight.deadline import Deadline
from onsight.errors import BudgetTooSmall, ConfigError, Interrupted, NonFiniteLoss
from onsight.evaluation.blending import choose_weights
from onsight.evaluation.predictions import HeldOutLogits
from onsight.evaluation.statistics import Z_95, fold_interval_ratio, wilson
from onsight.features.feature_pass import MIRRORED
from onsight.features.feature_pass import PLAIN as PLAIN_VIEW
from onsight.models.blend import Blend
from onsight.models.build import build_classifier
from onsight.models.compact import Sprint
from onsight.models.file import load_model_file
from onsight.ranks import world
from onsight.report.console import Reporter, SilentReporter
from onsight.sweeper.plan import PlannedRun
from onsight.sweeper.result import read_run
from onsight.tensorfile import read_tensors
from onsight.text import percent
from onsight.training import (
    blend_members,
    layout,
    load_features,
    members,
    place,
    run_folder,
    save_run,
)
from onsight.training import run as run_module
from onsight.training.decisions import Decisions, is_complete, read_decisions
from onsight.tune.candidates import Candidate

CANDIDATES = (
    Candidate("small", {"model": "lenet"}, 0.4, (16, 16)),
    Candidate("sprint", {"model": "sprint"}, 0.6, (12, 12)),
)
PLAIN = {"epochs": 2, "batch_size": 16, "threads": 1, "cache_folder": "none"}


@pytest.fixture(autouse=True)
def two_candidates(monkeypatch):
    monkeypatch.setattr(layout, "choose_candidates", lambda *_: CANDIDATES)


def train(data, out, reporter=None, **fields):
    fields = PLAIN | fields
    return onsight.train(data, out=out, reporter=reporter or SilentReporter(), **fields)


class Clock:
    """Seconds spent; each look takes a moment."""

    now = 2.0

    def __init__(self, tick=0.05):
        self.tick = tick

    def __call__(self):
        self.now += self.tick
        return self.now


def train_in_20_seconds(data, out, **fields):
    fields = {key: value for key, value in PLAIN.items() if key != "epochs"} | fields
    fields = {"spent": Clock(0.1), "folds": 1, "reporter": SilentReporter()} | fields
    return onsight.train(data, out=out, budget="20s", **fields)


def repeat(run, data, out):
    config_file = run.path / "config.toml"
    return onsight.train(data, out=out, config_file=config_file, reporter=SilentReporter()).path


def tensors_of(path):
    return read_tensors(path / "model.safetensors")[0]


def assert_same_tensors(mine, other):
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def share_equally(log_probabilities, labels):
    return {name: 1 / len(log_probabilities) for name in log_probabilities}


@pytest.fixture
def equal_weights(monkeypatch):
    """Both members are kept, whatever they are worth."""
    monkeypatch.setattr(blend_members, "choose_weights", share_equally)


@pytest.fixture(scope="module")
def whole(shared_bars, train_once):
    """A run of both members with equal weights; nobody changes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "choose_candidates", lambda *_: CANDIDATES)
        patch.setattr(blend_members, "choose_weights", share_equally)
        return train_once("members", shared_bars, report=False, **PLAIN)


class StopAfter:
    """A signal that arrives after so many looks."""

    signal_number = signal.SIGTERM

    def __init__(self, looks):
        self.looks = looks

    def __bool__(self):
        self.looks -= 1
        return self.looks <= 0


def test_every_member_is_what_a_run_of_its_model_trains(bars, tmp_path, whole):
    for candidate in CANDIDATES:
        side = candidate.image_size[0]
        kept = load_model_file(whole.model, candidate.name)
        assert kept.preprocessing.input_shape == (1, side, side)
        if side == 12:  # the packed size; others are resized with each batch
            alone = train(bars, tmp_path / "run", image_size=side, **candidate.fields)
            assert_same_tensors(kept.weights, load_model_file(alone.model).weights)
    rows = whole.results["members"]
    assert [row["name"] for row in rows] == ["small", "sprint"]
    assert [row["weight"] for row in rows] == [0.5, 0.5]
    assert all(row["images"] > 0 for row in rows)


def test_a_blend_averages_the_probabilities_of_its_members(whole):
    classifier = build_classifier(load_model_file(whole.model), torch.device("cpu"))
    assert isinstance(classifier, Blend)
    images = torch.randint(0, 256, (20, 12, 12, 1), dtype=torch.uint8)
    members_logits = [
        classifier.members[name].raw_logits(images).double() / classifier.members[name].temperature
        for name in ("small", "sprint")
    ]
    mean = sum(logits.softmax(dim=1) for logits in members_logits) / 2
    expected = (mean.log() / classifier.temperature).softmax(dim=1)
    assert torch.allclose(classifier(images).double().softmax(dim=1), expected, atol=1e-6)


def test_a_sweep_chooses_by_what_the_blend_is_right_about_on_validation_images(whole):
    rows = [
        HeldOutLogits(**read_tensors(whole.path / "members" / name / "held-out.safetensors")[0])
        for name in ("small", "sprint")
    ]
    mean = sum(
        (found.logits / load_model_file(whole.model, name).temperature).softmax(dim=1)
        for name, found in zip(("small", "sprint"), rows, strict=True)
    )
    swept = read_run(PlannedRun(whole.path, {}, {}))
    assert swept.validation_images == len(rows[0].ids) == 12
    right = mean.argmax(dim=1) == rows[0].labels
    assert swept.validation_accuracy == pytest.approx(float(right.double().mean()))


def test_the_results_of_a_blend_are_not_those_of_its_members(whole):
    file = load_model_file(whole.model)
    assert file.results["accuracy"] == whole.accuracy
    assert [member.results for member in file.members.values()] == [{}, {}]
    assert "result" in onsight.load(whole.path).runner.facts
    assert "result" not in onsight.load(whole.path, member="sprint").runner.facts


@pytest.mark.parametrize("blend", ["auto", "off"])
def test_a_learning_curve_names_the_network_of_the_blend(
    bars, tmp_path, monkeypatch, blend, equal_weights
):
    monkeypatch.setattr(save_run, "fit_learning_curve", lambda fewer, accuracy: {"gain": 0.04})
    run = train(bars, tmp_path / "run", epochs=1, blend=blend)
    expected = {"network": "small"} if blend == "auto" else {}
    assert run.results["learning_curve"] == {"gain": 0.04, **expected}
    config = load_model_file(run.model).provenance["config"]
    assert (config["model"] == "auto") == (blend == "auto")  # of one network, its own settings


def test_weights_and_temperature_come_from_images_that_no_member_learned_from(bars, tmp_path):
    run = train(bars, tmp_path / "run")
    rows = {
        name: HeldOutLogits(**read_tensors(run.path / "members" / name / "held-out.safetensors")[0])
        for name in ("small", "sprint")
    }
    assert torch.equal(rows["small"].ids, rows["sprint"].ids)
    logs = {
        name: (found.logits / load_model_file(run.path / "members" / name).temperature).log_softmax(
            dim=1
        )
        for name, found in rows.items()
    }
    expected = choose_weights(logs, rows["small"].labels)
    kept = {row["name"]: row["weight"] for row in run.results["members"] if row["weight"]}
    assert kept == pytest.approx(expected)


@pytest.mark.parametrize("looks", [pytest.param(2, marks=pytest.mark.soak), 9, 22])
def test_a_stopped_run_goes_on_to_the_same_bits(
    bars, tmp_path, monkeypatch, looks, whole, equal_weights
):
    out = tmp_path / "stopped"
    stop = StopAfter(looks)
    with monkeypatch.context() as patch:
        patch.setattr(world, "StopRequest", lambda: stop)
        with pytest.raises(Interrupted, match="^(small|sprint): stopped in epoch") as stopped:
            train(bars, out)
    is_first_finished = looks > 20
    assert str(stopped.value).startswith("sprint" if is_first_finished else "small")
    fitted, real = [], members.fit
    monkeypatch.setattr(members, "fit", lambda run, *rest: fitted.append(run) or real(run, *rest))
    resumed = onsight.train(bars, out=out, resume=True, reporter=SilentReporter())
    assert_same_tensors(tensors_of(whole.path), tensors_of(resumed.path))
    assert len(fitted) == (1 if is_first_finished else 2)


def test_a_resumed_member_takes_the_settings_that_may_change(bars, tmp_path, monkeypatch):
    out, configs, real = tmp_path / "run", [], members.fit

    def stop_at_second(planned, *rest):
        configs.append(planned.config)
        if len(configs) == 2:
            raise KeyboardInterrupt
        return real(planned, *rest)

    monkeypatch.setattr(members, "fit", stop_at_second)
    with pytest.raises(KeyboardInterrupt):
        train(bars, out)
    changes = {"threads": 2, "checkpoint_steps": 1, "log": "none", "residency": "map"}
    onsight.train(bars, out=out, resume=True, reporter=SilentReporter(), **changes)
    assert configs[2] == configs[1].model_copy(update=changes)


@pytest.mark.parametrize("enough", [12, 13])
def test_after_a_network_that_is_always_right_no_other_is_trained(
    bars, tmp_path, monkeypatch, capsys, enough
):
    monkeypatch.setattr(members, "_ENOUGH_IMAGES", enough)
    run = train(bars, tmp_path / "run", reporter=Reporter(), epochs=8)
    first = run.results["members"][0]
    assert (first["name"], first["images"], first["accuracy"]) == ("small", 12, 1.0)
    assert len(run.results["members"]) == (1 if enough == 12 else 2)
    said = "sprint is not trained: small is right on all 12 images" in capsys.readouterr().err
    assert said == (enough == 12)


def test_each_network_is_a_line_with_its_accuracy(bars, tmp_path, capsys, equal_weights):
    run = train(bars, tmp_path / "run", reporter=Reporter(verbose=True))
    lines = capsys.readouterr().err.splitlines()
    assert "image size: 12x12 (all sampled images have this size)" in lines
    for row in run.results["members"]:
        start = f"{row['name']}: {percent(row['accuracy'])} of {row['images']} validation images ("
        (line,) = (line for line in lines if line.startswith(start))
        assert "from scratch" in line
    chosen = "model: small and sprint (chosen by the number and size of the images, the kind of "
    assert sum(line.startswith(chosen) for line in lines) == 1
    assert sum(line.startswith("model: a blend of 50.0% small and ") for line in lines) == 1


def test_a_stopped_run_leaves_the_best_model_so_far(bars, tmp_path, monkeypatch, capsys):
    out, stop = tmp_path / "run", StopAfter(22)
    monkeypatch.setattr(world, "StopRequest", lambda: stop)
    with pytest.raises(Interrupted):
        train(bars, out, reporter=Reporter())
    assert "the best model so far is in" in " ".join(capsys.readouterr().err.split())
    file = load_model_file(out)
    assert file.model == "lenet"
    assert file.results["split"] == "validation"
    assert file.results["images"] > 0


@pytest.mark.parametrize(
    ("loaded", "missing"), [(1, "report.html"), (2, "report.html"), (1, "results.json")]
)
def test_a_resumed_run_keeps_its_model_while_finished_members_are_loaded(
    bars, tmp_path, monkeypatch, whole, equal_weights, loaded, missing
):
    out = shutil.copytree(whole.path, tmp_path / "run")
    (out / missing).unlink(missing_ok=True)  # stopped before that
    before = (out / "model.safetensors").read_bytes()
    left = [False] * (loaded - 1)

    def stop_after(member):
        if not left:
            raise KeyboardInterrupt
        return left.pop()

    monkeypatch.setattr(members, "_is_always_right", stop_after)
    with pytest.raises(KeyboardInterrupt):
        onsight.train(bars, out=out, resume=True, reporter=SilentReporter())
    assert (out / "model.safetensors").read_bytes() == before


def test_a_member_that_fails_is_left_out(bars, tmp_path, monkeypatch, capsys):
    real = members.fit

    def fail_first(planned, *rest):
        if planned.config.model == "lenet":
            raise NonFiniteLoss("the loss is nan")
        return real(planned, *rest)

    monkeypatch.setattr(members, "fit", fail_first)
    run = train(bars, tmp_path / "run", reporter=Reporter(), epochs=1)
    assert "small is left out: the loss is nan" in capsys.readouterr().err
    assert [row["name"] for row in run.results["members"]] == ["sprint"]
    monkeypatch.setattr(members, "fit", lambda *_: (_ for _ in ()).throw(NonFiniteLoss("nan")))
    with pytest.raises(NonFiniteLoss):
        train(bars, tmp_path / "none")


def test_folds_are_blended_with_weights_from_the_other_folds(bars, tmp_path):
    run = train(bars, tmp_path / "run", folds=3)
    tables = {}
    for name in ("small", "sprint"):
        paths = sorted((run.path / "members" / name / "folds").glob("*/evaluation.safetensors"))
        parts = [read_tensors(path)[0] for path in paths]
        tables[name] = [
            HeldOutLogits(part["one.ids"], part["one.logits"], part["one.labels"]) for part in parts
        ]
    right = 0
    for fold in range(3):
        others = {
            name: torch.cat([part.logits for i, part in enumerate(found) if i != fold])
            for name, found in tables.items()
        }
        labels = torch.cat([p.labels for i, p in enumerate(tables["small"]) if i != fold])
        weights = choose_weights(
            {name: logits.log_softmax(dim=1) for name, logits in others.items()}, labels
        )
        mean = sum(
            weight * tables[name][fold].logits.double().softmax(dim=1)
            for name, weight in weights.items()
        )
        right += int((mean.argmax(dim=1) == tables["small"][fold].labels).sum())
    images = run.results["images"]
    assert run.results["accuracy"] == pytest.approx(right / images)
    assert run.results["split"] == "folds"
    assert images == run.results["used"]
    for row in run.results["members"]:
        ends = wilson(round(row["accuracy"] * images), images, Z_95 * fold_interval_ratio(3))
        assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx(ends)


def test_one_member_can_be_asked_for(bars, tmp_path, equal_weights):
    off = train(bars, tmp_path / "off", blend="off", epochs=1)
    rows = off.results["members"]
    best = min(rows, key=lambda row: row["loss"])
    assert [row["name"] for row in rows if row["weight"]] == [best["name"]]


def test_a_head_may_take_more_than_its_share_of_the_time():
    job = SimpleNamespace(
        deadline=SimpleNamespace(remaining=lambda: 10.0),
        decisions=SimpleNamespace(decide=lambda name, ask, kind: ask()),
    )
    head, sprint = (
        Candidate(name, {"model": name, "freeze": name == "head"}, 0.1, (64, 64))
        for name in ("head", "sprint")
    )
    assert members._has_time(head, 0.1, job)
    assert not members._has_time(sprint, 0.1, job)


@pytest.mark.parametrize(
    ("fields", "views"),
    [({}, 1), ({"tta": "flip-shift"}, 7), ({"test_fraction": 0}, 1), ({"folds": 2}, 0)],
)
def test_time_is_kept_for_every_view_that_a_member_will_evaluate(
    bars, tmp_path, monkeypatch, fields, views
):
    kept, reserve = {}, Deadline.reserve

    def note(self, purpose, seconds):
        kept[purpose] = seconds
        reserve(self, purpose, seconds)

    monkeypatch.setattr(members, "time_inference", lambda classifier, data: 0.001)
    monkeypatch.setattr(Deadline, "reserve", note)
    run = train(bars, tmp_path / "run", epochs=1, **fields)
    seconds = pytest.approx(0.001 * views * run.results["images"])
    assert [kept[f"evaluating {name}"] for name in ("small", "sprint")] == [seconds, seconds]


def test_a_limit_of_milliseconds_leaves_out_slow_members(
    bars, tmp_path, monkeypatch, equal_weights
):
    monkeypatch.setattr(
        members,
        "time_inference",
        lambda classifier, data: 0.004 if isinstance(classifier.net, Sprint) else 0.001,
    )
    kept = {}
    for limit in (5, 3, 0.5):
        run = train(bars, tmp_path / str(limit), max_ms_per_image=limit, epochs=1)
        kept[limit] = [row["name"] for row in run.results["members"] if row["weight"]]
    assert kept == {5: ["small", "sprint"], 3: ["small"], 0.5: ["small"]}


def test_one_network_that_is_slower_than_the_limit_is_named(bars, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(layout, "choose_candidates", lambda *_: CANDIDATES[:1])
    monkeypatch.setattr(members, "time_inference", lambda classifier, data: 0.001)
    for limit, is_slower in ((5, False), (0.5, True)):
        train(bars, tmp_path / str(limit), Reporter(), max_ms_per_image=limit, epochs=1)
        said = " ".join(capsys.readouterr().err.split())
        assert ("at most 0.5 ms per image: the fastest, small, takes 1 ms" in said) == is_slower


def test_a_run_that_was_killed_between_its_networks_is_not_repeated():
    decisions = {"candidates": {"candidates": []}, "train small": True, "segment 0": None}
    assert not is_complete(decisions)
    assert is_complete({**decisions, "members": ["small", "sprint"]})


def test_a_run_restarted_after_its_budget_keeps_what_is_trained(bars, tmp_path, equal_weights):
    run = train_in_20_seconds(bars, tmp_path / "run")
    before = tensors_of(run.path)
    train_in_20_seconds(bars, run.path, restarted=True, spent=lambda: 21.0)
    assert_same_tensors(before, tensors_of(run.path))


@pytest.mark.parametrize("folds", [1, 3])
def test_a_resumed_run_counts_all_time_used_before_and_only_once(
    bars, tmp_path, monkeypatch, equal_weights, folds
):
    clock, out, counted = Clock(), tmp_path / "run", []
    open_data, plan_run = run_module.open_data, members.plan_run

    def open_slowly(*args):
        clock.now += 5.0
        return open_data(*args)

    def stop(*_):
        raise KeyboardInterrupt

    def stop_at_second(placed, job):
        if placed.config.model == "sprint":
            counted.append(job.deadline.whole.elapsed())
            raise KeyboardInterrupt
        return plan_run(placed, job)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "open_data", open_slowly)
        patch.setattr(members, "_is_always_right", stop)
        with pytest.raises(KeyboardInterrupt):
            train_in_20_seconds(bars, out, spent=clock, folds=folds)
    monkeypatch.setattr(members, "plan_run", stop_at_second)
    with pytest.raises(KeyboardInterrupt):
        onsight.train(bars, out=out, resume=True, spent=lambda: 0.0, reporter=SilentReporter())
    assert counted == [pytest.approx(clock.now, abs=0.5)]


def test_a_repetition_that_was_killed_before_it_began_is_not_repeated(tmp_path):
    Decisions(tmp_path, repeated_run=tmp_path / "first").record_repeated()
    assert not is_complete(read_decisions(tmp_path))


def test_a_budgeted_run_is_repeated_to_the_bit(bars, tmp_path, equal_weights):
    run = train_in_20_seconds(bars, tmp_path / "run")
    names = {name: read_decisions(run.path / "members" / name) for name in ("small", "sprint")}
    assert all("segment 0" in found for found in names.values())
    assert_same_tensors(tensors_of(run.path), tensors_of(repeat(run, bars, tmp_path / "again")))


@pytest.mark.parametrize(
    "error", [BudgetTooSmall("no time is left"), torch.OutOfMemoryError("no room")]
)
def test_what_a_budgeted_run_left_out_is_left_out_when_it_is_repeated(
    bars, tmp_path, monkeypatch, equal_weights, error
):
    real = members.plan_run

    def fail_second(placed, job):
        if placed.config.model == "sprint":
            raise error
        return real(placed, job)

    with monkeypatch.context() as patch:
        patch.setattr(members, "plan_run", fail_second)
        run = train_in_20_seconds(bars, tmp_path / "run")
    assert [row["name"] for row in run.results["members"]] == ["small"]
    assert_same_tensors(tensors_of(run.path), tensors_of(repeat(run, bars, tmp_path / "again")))


def test_an_untrained_network_is_left_out(bars, tmp_path, monkeypatch, equal_weights, capsys):
    """Its time ended before its first step."""
    clock = Clock(0.1)
    real = members._save_start

    def save_slowly(planned, job):
        real(planned, job)
        if planned.config.model == "sprint":
            clock.now += 20

    monkeypatch.setattr(members, "_save_start", save_slowly)
    run = train_in_20_seconds(bars, tmp_path / "run", spent=clock, reporter=Reporter())
    assert [row["name"] for row in run.results["members"]] == ["small"]
    assert "sprint is left out: the budget ended before its first training step" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_head_is_computed_again_by_as_many_threads_as_before(
    bars, tmp_path, monkeypatch, is_resumed
):
    """Another number of threads changes how sums are rounded. The next network has its own."""
    head = Candidate("head", {"model": "test_resnet", "freeze": True}, 0.4, (16, 16))
    monkeypatch.setattr(layout, "choose_candidates", lambda *_: (head, CANDIDATES[1]))
    monkeypatch.setattr(run_folder, "_BEGUN", set())  # the folder stays, as after a kill
    monkeypatch.delitem(PLAIN, "threads")
    fitted, timed, real_fit, real_time_run = [], [], members.fit, place.time_run

    def fit(*arguments):
        fitted.append(torch.get_num_threads())
        if is_resumed and len(fitted) == 1:
            raise KeyboardInterrupt
        return real_fit(*arguments)

    def time_run(*arguments):
        timed.append(torch.get_num_threads())
        return real_time_run(*arguments)

    monkeypatch.setattr(members, "fit", fit)
    monkeypatch.setattr(place, "time_run", time_run)
    with pytest.raises(KeyboardInterrupt) if is_resumed else nullcontext():
        train_in_20_seconds(bars, tmp_path / "run")
    recorded = tmp_path / "run" / "members" / "head" / "config.toml"
    text, changes = re.subn(r"(?m)^threads = \d+$", "threads = 3", recorded.read_text())
    assert changes == 1
    recorded.write_text(text)
    if is_resumed:
        fields = {"spent": Clock(0.1), "reporter": SilentReporter()}
        onsight.train(bars, out=tmp_path / "run", resume=True, **fields)
    else:
        repeat(SimpleNamespace(path=tmp_path / "run"), bars, tmp_path / "again")
    assert fitted[-2] == 3
    assert timed[-1] != 3


@pytest.mark.parametrize(
    ("module", "stage"), [(run_module, "open_data"), (members, "_is_always_right")]
)
def test_a_repetition_that_is_resumed_still_ignores_the_clock(
    bars, tmp_path, monkeypatch, equal_weights, module, stage
):
    def stop(*_):
        raise KeyboardInterrupt

    run, again = train_in_20_seconds(bars, tmp_path / "run"), tmp_path / "again"
    with monkeypatch.context() as patch:
        patch.setattr(module, stage, stop)
        patch.setattr(run_folder, "_BEGUN", set())  # the folder stays, as after a kill
        with pytest.raises(KeyboardInterrupt):
            repeat(run, bars, again)
    fields = {"spent": lambda: 1000.0, "reporter": SilentReporter()}
    onsight.train(bars, out=again, resume=True, **fields)
    assert_same_tensors(tensors_of(run.path), tensors_of(again))
    shutil.rmtree(run.path)
    with pytest.raises(ConfigError, match=r"repeats .*decisions.jsonl, which is gone"):
        onsight.train(bars, out=again, resume=True, **fields)


@pytest.mark.parametrize(
    ("image_seconds", "trained"),
    [([0.01], ["head", "sprint"]), ([1.0, 0.01], ["head", "sprint"]), ([1.0, 1.0], ["sprint"])],
)
def test_a_head_with_time_for_few_of_the_images_is_left_out(
    bars, tmp_path, monkeypatch, equal_weights, capsys, image_seconds, trained
):
    """It does not extend the budget. It is timed again: a machine may be busy for a moment."""
    head = Candidate("head", {"model": "test_resnet", "freeze": True}, 0.4, (16, 16))
    monkeypatch.setattr(layout, "choose_candidates", lambda *_: (head, CANDIDATES[1]))
    with monkeypatch.context() as patch:
        patch.setattr(place, "time_inference", Mock(side_effect=image_seconds))
        run = train_in_20_seconds(bars, tmp_path / "run", reporter=Reporter())
    output = capsys.readouterr().err
    assert [row["name"] for row in run.results["members"]] == trained
    assert ("head is left out: --budget 20s is too short" in output) == (trained == ["sprint"])
    assert "the run will take about" not in output
    again = repeat(run, bars, tmp_path / "again")
    assert_same_tensors(tensors_of(run.path), tensors_of(again))


@pytest.mark.parametrize(("most_images", "training_seconds"), [(100, 72_000), (50, 36_000)])
def test_a_head_has_more_time_for_few_images_and_their_mirror_images(
    bars, tmp_path, monkeypatch, most_images, training_seconds
):
    class EnoughError(Exception):
        pass

    seconds, compute = [], load_features.compute_features

    def record(classifier, batches, view, progress, deadline, **named):
        seconds.append((view, deadline - time.monotonic()))
        if view == MIRRORED:
            raise EnoughError
        return compute(classifier, batches, view, progress, deadline, **named)

    head = Candidate("head", {"model": "test_resnet", "freeze": True}, 0.4, (16, 16))
    monkeypatch.setattr(layout, "choose_candidates", lambda *_: (head, CANDIDATES[1]))
    monkeypatch.setattr(load_features, "compute_features", record)
    monkeypatch.setattr(load_features, "FEW_IMAGES", most_images)
    fields = {key: value for key, value in PLAIN.items() if key != "epochs"}
    with pytest.raises(EnoughError):
        onsight.train(
            bars,
            out=tmp_path / "run",
            reporter=SilentReporter(),
            budget="100000s",  # beside which the seconds of a busy machine are nothing
            spent=lambda: 0.0,
            **fields,
        )
    assert [view for view, _ in seconds] == [PLAIN_VIEW, PLAIN_VIEW, MIRRORED]
    # The head has 80% for few images: a fifth of it for validation, then nine tenths.
    expected = [16_000, training_seconds, training_seconds]
    assert [left for _, left in seconds] == pytest.approx(expected, rel=0.05)
