"""--model auto on real images: what it tries, what it keeps as asked, when it does not try."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from prepared import make_job

import onsight
from onsight.config import make_config
from onsight.deadline import Deadline
from onsight.errors import BudgetTooSmall
from onsight.models.timm_nets import offline_models
from onsight.report.console import SilentReporter
from onsight.training import layout
from onsight.training.layout import find_data
from onsight.tune.auto import candidates, choose_model
from onsight.tune.auto.backbone_pace import least_forward_seconds
from onsight.tune.budget import Budget

CPU = torch.device("cpu")
QUIET = {"reporter": SilentReporter()}
REAL_MODELS = offline_models()


@pytest.fixture
def with_weights(monkeypatch):
    """Undoes the fixture of all tests that hides the installed weights."""
    assert REAL_MODELS
    monkeypatch.setattr(candidates, "offline_models", lambda: REAL_MODELS)


def choose(data, **fields):
    config = make_config({"threads": 1, **fields})
    source = find_data(str(data), config, make_job())
    return choose_model.choose_model(config, source, CPU, 1, SilentReporter(), None)


@pytest.fixture
def textures(tmp_path):
    """Stripes and dots of 100 pixels in many colours, too few to learn from scratch in a moment."""
    rng = np.random.default_rng(0)
    for kind in ("stripes", "dots", "plain"):
        (tmp_path / "data" / kind).mkdir(parents=True)
        for number in range(16):
            pixels = np.empty((100, 100, 3), np.uint8)
            pixels[:] = rng.integers(0, 255, 3)
            if kind == "stripes":
                pixels[:, :: int(rng.integers(5, 9))] = rng.integers(0, 255, 3)
            elif kind == "dots":
                pixels[:: int(rng.integers(5, 9)), :: int(rng.integers(5, 9))] = rng.integers(
                    0, 255, 3
                )
            Image.fromarray(pixels).save(tmp_path / "data" / kind / f"{number}.png")
    return tmp_path / "data"


def test_few_large_images_get_a_pretrained_head(textures, with_weights):
    choice, fields = choose(textures)
    assert choice.value == "tf_efficientnet_lite0"
    assert fields["pretrained"]
    assert "from scratch" in choice.reason
    assert "n = " in choice.reason


def test_a_run_says_and_keeps_what_was_chosen(textures, with_weights, tmp_path):
    run = onsight.train(
        textures, out=tmp_path / "run", image_size=64, threads=1, reporter=SilentReporter()
    )
    plan = json.loads((run.path / "plan.json").read_text())
    config = (run.path / "config.toml").read_text()
    assert plan["model"]["value"] == run.results["model"]
    assert f'model = "{run.results["model"]}"' in config
    assert 'image_size = "64"' in config


def test_without_weights_nothing_is_tried(textures):
    choice, fields = choose(textures)
    assert fields == {"model": "sprint"}
    assert choice.reason.startswith("no pretrained weights are here")


def test_a_image_of_each_class_gets_a_pretrained_head(tmp_path, with_weights):
    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
    Image.new("RGB", (80, 80)).save(tmp_path / "a" / "1.png")
    Image.new("RGB", (80, 80), "red").save(tmp_path / "b" / "1.png")
    choice, fields = choose(tmp_path)
    assert fields["freeze"]
    assert "sprint from scratch" not in choice.reason


def test_a_model_that_was_asked_for_is_not_questioned(
    textures, with_weights, monkeypatch, tmp_path
):
    monkeypatch.setattr(choose_model, "choose_model", None)
    run = onsight.train(
        textures,
        out=tmp_path / "run",
        model="linear",
        epochs=1,
        threads=1,
        reporter=SilentReporter(),
    )
    assert run.results["model"] == "linear"


def test_the_same_run_gets_the_same_model_without_trials(textures, with_weights, monkeypatch):
    first, fields = choose(textures)
    monkeypatch.setattr(candidates, "try_head", None)
    again, kept = choose(textures)
    assert again.value == first.value
    assert kept == fields
    assert again.reason.startswith("kept from an earlier run")


def test_a_frozen_backbone_has_published_weights(textures):
    choice, fields = choose(textures, freeze=True)
    assert fields == {"model": "tf_efficientnet_lite0", "pretrained": True}
    assert choice.reason == "its weights need no network"


def test_heads_are_not_tried_for_another_loss(textures, with_weights):
    choice, fields = choose(textures, loss="mse")
    assert fields == {"model": "sprint"}
    assert "cross-entropy" in choice.reason


def test_a_trial_that_fails_is_said_and_does_not_end_the_run(textures, with_weights):
    choice, fields = choose(textures, learning_rate=1e30)
    assert fields == {"model": "sprint"}
    assert choice.reason.startswith("not tried: ")


def test_what_there_is_no_time_for_after_all_gives_way_to_the_net_from_scratch(
    textures, with_weights, monkeypatch, tmp_path
):
    real, refused = layout._choose_size, []

    def choose_size(source, config, *rest):
        if config.model != "sprint":
            refused.append(config.model)
            raise BudgetTooSmall("--budget 60s is too short for it")
        return real(source, config, *rest)

    monkeypatch.setattr(layout, "_choose_size", choose_size)
    run = onsight.train(textures, out=tmp_path / "run", epochs=1, threads=1, **QUIET)
    assert refused == ["tf_efficientnet_lite0"]
    model = json.loads((run.path / "plan.json").read_text())["model"]
    assert model["value"] == run.results["model"] == "sprint"
    assert "too little time for tf_efficientnet_lite0" in model["reason"]
    with pytest.raises(BudgetTooSmall):
        onsight.train(textures, out=tmp_path / "asked", model=refused[0], threads=1, **QUIET)


def test_trials_that_say_nothing_do_not_end_a_run(textures, with_weights, monkeypatch):
    monkeypatch.setattr(candidates, "pretrained_outlook", lambda *_: None)
    monkeypatch.setattr(candidates, "_FEWEST_JUDGED", 10_000)
    choice, fields = choose(textures)
    assert fields == {"model": "sprint"}
    assert choice.reason == "not tried: the trials say too little"


@pytest.mark.parametrize(("each", "is_tried"), [(1e-6, True), (2.0, False)])
def test_nothing_is_tried_where_no_backbone_could_judge_what_is_held_out(
    textures, with_weights, monkeypatch, each, is_tried
):
    monkeypatch.setattr(choose_model, "least_forward_seconds", lambda threads: each)
    config = make_config({"threads": 1, "budget": "10s"})
    source = find_data(str(textures), config, make_job())
    budget = Budget(Deadline(10.0))
    choice, _ = choose_model.choose_model(config, source, CPU, 1, SilentReporter(), budget)
    reason = "not tried: the 10 images held out take about 20 of the"
    assert choice.reason.startswith(reason) != is_tried


def test_timing_a_backbone_draws_no_random_numbers():
    before = torch.random.get_rng_state()
    assert least_forward_seconds(1) > 0
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(("seconds", "is_tried"), [(1e-6, True), (2.0, False)])
def test_nothing_is_tried_where_decoding_leaves_no_time(
    textures, tmp_path, with_weights, monkeypatch, seconds, is_tried
):
    """The images of a given test part have to be decoded, however long they take."""
    for part in ("train", "test"):
        shutil.copytree(textures, tmp_path / "parts" / part)
    monkeypatch.setattr(choose_model, "time_decoding", lambda *given: seconds)
    config = make_config({"threads": 1, "budget": "60s"})
    source = find_data(str(tmp_path / "parts"), config, make_job())
    budget = Budget(Deadline(60.0, lambda: 5.0))
    choice, _ = choose_model.choose_model(config, source, CPU, 1, SilentReporter(), budget)
    assert ("tried: the 53 images held out" not in choice.reason) == is_tried
    assert is_tried or choice.value == "sprint"
