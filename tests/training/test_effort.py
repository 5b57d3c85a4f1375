"""A run without a budget: what fits into its effort, by counts and never by a clock."""

import csv
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import onsight
from onsight.choice import Choice
from onsight.config import make_config
from onsight.errors import ConfigError
from onsight.evaluation.blending import choose_weights
from onsight.evaluation.predictions import HeldOutLogits
from onsight.features.choose_head import choose_head
from onsight.report.console import Reporter, SilentReporter
from onsight.tensorfile import read_tensors
from onsight.training import fit_head, layout, members
from onsight.training.blend_members import FinalModel, report_blend
from onsight.tune import work
from onsight.tune.candidates import Candidate

PLAIN = {"batch_size": 16, "threads": 1, "cache_folder": "none", "log": "none"}
HEAD = Candidate("head", {"model": "test_resnet", "freeze": True}, 0.4, (12, 12))
SPRINT = Candidate("sprint", {"model": "sprint"}, 0.6, (12, 12), epochs=4)


@pytest.fixture
def two_candidates(monkeypatch):
    monkeypatch.setattr(layout, "choose_candidates", lambda *_: (HEAD, SPRINT))


def train(data, out, reporter=None, **fields):
    return onsight.train(data, out=out, reporter=reporter or SilentReporter(), **PLAIN | fields)


def said(capsys):
    return " ".join(capsys.readouterr().err.split())


def test_an_effort_and_a_budget_are_refused_together(bars, tmp_path):
    with pytest.raises(ConfigError, match="--effort quick and --budget 60s both say how long"):
        train(bars, tmp_path / "run", effort="quick", budget="60s")


@pytest.mark.parametrize("slower", [0.01, 50.0])
def test_another_speed_of_the_machine_changes_no_bit(
    bars, tmp_path, two_candidates, monkeypatch, slower
):
    fair = train(bars, tmp_path / "fair", epochs="auto")
    for clock in ("perf_counter", "monotonic"):
        real = getattr(time, clock)
        monkeypatch.setattr(time, clock, lambda real=real: slower * real())
    other = train(bars, tmp_path / "other", epochs="auto")
    one, two = (read_tensors(run.path / "model.safetensors")[0] for run in (fair, other))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_named_network_trains_for_as_long_as_its_table_says(bars, tmp_path, monkeypatch):
    monkeypatch.setattr("onsight.training.place.expected_seconds", lambda *_: 34.0)
    plan = train(bars, tmp_path / "run", model="lenet", image_size="16", folds=1)
    assert plan.results["epochs"] == 5  # of 34 s, in the 170 of 180 s that are left for training


@pytest.mark.parametrize(("seconds", "fitted"), [(2.0, 35), (20.0, 32), (0.6, 96), (0.3, 192)])
def test_a_named_frozen_network_sees_as_many_images_as_its_effort_has_time_for(
    bars, tmp_path, monkeypatch, seconds, fitted
):
    """Of 119 s, which are 70% of 170 s; 24 images are held out, and a third of 96 is the least."""
    monkeypatch.setattr("onsight.training.place.expected_forward_seconds", lambda *_: seconds)
    fields = {"model": "test_resnet", "freeze": True, "image_size": "12", "flip": True}
    run = train(bars, tmp_path / "run", **fields, folds=1)
    plan = json.loads((run.path / "plan.json").read_text())
    assert plan.get("head_images", {"value": 192})["value"] == fitted
    assert run.results.get("left_out", 0) == max(0, 96 - fitted)


def test_images_that_there_is_no_time_to_decode_are_drawn_and_listed(
    bars, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(work, "_FIXED_DECODING", 0.25e6)
    monkeypatch.setattr(work, "_DECODING", 0.0)
    run = train(
        bars, tmp_path / "run", Reporter(), model="lenet", image_size="16", effort="quick", epochs=1
    )
    assert run.results["used"] == 42  # of a quarter of a second, in 35% of 30 s
    assert "--effort quick has time for about 42 of 120 images" in said(capsys)
    with (run.path / "problems.csv").open() as file:
        assert len(list(csv.reader(file))) == 1 + 120 - 42


@pytest.mark.parametrize("extra", [-1, 0])
def test_a_head_is_fitted_on_mirror_images_if_there_is_time_for_all(
    bars, tmp_path, monkeypatch, extra
):
    fields = {"model": "test_resnet", "image_size": "12", "freeze": True, "folds": 1}
    run = train(bars, tmp_path / "all", **fields)
    images, seen = sum(row["train_images"] for row in run.results["classes"]), []

    def choose(train, *rest):
        seen.append(train.views.shape[:2])
        return choose_head(train, *rest)

    monkeypatch.setattr(fit_head, "choose_head", choose)
    train(bars, tmp_path / "both", head_images=2 * images + extra, **fields)
    train(bars, tmp_path / "some", head_images=images - 7, **fields)
    assert seen == [(2 + extra, images), (1, images - 7)]


def member(name, logits, labels):
    rows = HeldOutLogits(torch.arange(len(labels)), logits, labels)
    return SimpleNamespace(name=name, calibrated=rows)


def test_a_network_adds_something_if_the_best_blend_has_it():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (200,), generator=generator)
    right = torch.nn.functional.one_hot(labels, 3).float()
    noise = [torch.randn(200, 3, generator=generator) for _ in range(3)]
    good, other, useless = 3 * right + noise[0], 3 * right + noise[1], 5 * noise[2]
    head, config = member("head", good, labels), make_config({})

    def judge(logits, settings=config, ids=slice(None)):
        rows = HeldOutLogits(torch.arange(200), logits, labels).take(torch.arange(200)[ids])
        return members._find_no_gain([head], settings, rows)

    assert judge(other) == ""
    assert "adds nothing to head on 200 images" in judge(useless)
    logs = {"head": good.log_softmax(dim=1), "new": useless.log_softmax(dim=1)}
    assert "new" not in choose_weights(logs, labels)
    assert judge(useless, ids=slice(29)) == ""  # too few to tell
    assert judge(useless, make_config({"blend": "off"})) == ""
    assert judge(useless, make_config({"max_ms_per_image": 5.0})) == ""
    assert members._find_no_gain([], config, HeldOutLogits(*map(torch.zeros, (0, 0, 0)))) == ""


@pytest.mark.parametrize("folds", [1, 3])
def test_a_network_that_adds_nothing_is_given_up_halfway(
    bars, tmp_path, two_candidates, monkeypatch, capsys, folds
):
    asked = []

    def refuse(earlier, config, rows):
        if not earlier:
            return ""
        asked.append(len(rows.ids))
        return "it adds nothing"

    monkeypatch.setattr(members, "_find_no_gain", refuse)
    run = train(bars, tmp_path / "run", Reporter(), folds=folds)
    assert len(asked) == 1
    assert "sprint is left out: it adds nothing" in said(capsys)
    assert [row["name"] for row in run.results["members"]] == ["head"]
    rows = (run.path / "members" / "sprint" / "metrics.jsonl").exists()
    assert rows is (folds == 1)


@pytest.mark.parametrize("seconds", [40.0, 0.0])
def test_a_run_says_beforehand_how_long_it_takes_if_the_table_knows(
    bars, tmp_path, monkeypatch, capsys, seconds
):
    known = (replace(HEAD, seconds=40.0), replace(SPRINT, seconds=seconds))
    monkeypatch.setattr(layout, "choose_candidates", lambda *_: known)
    train(bars, tmp_path / "run", Reporter())
    line = "time: about 1.5 min on two quiet cores: head 40 s, sprint 40 s and everything else 10 s"
    assert (line in said(capsys)) is bool(seconds)


@pytest.mark.parametrize(
    ("cost", "right", "is_told"), [(0.9, 95, True), (0.9, 80, False), (0.8, 95, False)]
)
def test_a_costly_blend_names_the_option_that_leaves_it_out(capsys, cost, right, is_told):
    labels = torch.zeros(100, dtype=torch.long)

    def member(name, right, image_seconds):
        logits = torch.tensor([[9.0, 0.0]] * right + [[0.0, 9.0]] * (100 - right))
        rows = HeldOutLogits(torch.arange(100), logits, labels)
        return SimpleNamespace(
            name=name, calibrated=rows, held_out=rows, image_seconds=image_seconds
        )

    fast, slow = member("fast", right, 0.1), member("slow", 97, cost)
    final = FinalModel(None, (fast, slow), {"fast": 0.6, "slow": 0.4}, Choice(1.0, ""), None)
    report_blend(final, Reporter())
    told = said(capsys)
    assert "a blend of 60.0% fast and 40.0% slow" in told
    line = (
        "10 times as long as fast, whose 95.0% on 100 images are within its interval: --blend off"
    )
    assert (line in told) is is_told
