"""Oracles: a recurrence in floats, rates counted from the head down, what was asked for."""

import json
import tomllib

import pytest
from torch import nn

import onsight
from onsight.config import make_config
from onsight.models.catalog import make_model
from onsight.models.head import require_head
from onsight.report.console import SilentReporter
from onsight.step.fine_tuning import (
    choose_average,
    choose_fine_tuning,
    settle_fine_tuning,
)
from onsight.step.optim import choose_learning_rate, make_optimizer
from onsight.step.update import MovingAverage
from onsight.tune.batch_size import usual_batch

TUNED = {"model": "resnet10t", "pretrained": True}


def settled(**fields):
    config = make_config(fields)
    return settle_fine_tuning(config, choose_fine_tuning(config))


def test_all_layers_learn_alike_from_random_weights_and_with_a_frozen_backbone():
    for fields in ({}, {**TUNED, "freeze": True}):
        config = make_config(fields)
        assert choose_fine_tuning(config) == {}
        found = settled(**fields)
        assert (found.layer_decay, found.norm_statistics) == (1.0, "batch")
        assert (found.crop_area, usual_batch(config, 100).value) == (1.0, 128)


def test_what_is_left_open_is_chosen_with_reasons():
    choices = choose_fine_tuning(make_config(TUNED))
    assert set(choices) == {"layer_decay", "norm_statistics", "crop_area"}
    found = settled(**TUNED)
    assert 0.5 < found.layer_decay < 1
    assert found.norm_statistics == "frozen"
    assert all(choice.reason for choice in choices.values())
    from_random = choose_learning_rate(make_config({"model": "resnet10t"}))
    assert choose_learning_rate(make_config(TUNED)).value < from_random.value


def test_what_is_asked_for_stays_even_where_it_is_the_default():
    asked = {"layer_decay": 1.0, "norm_statistics": "batch", "crop_area": 1.0, "ema": 0.0}
    config = make_config({**TUNED, **asked, "batch_size": 128})
    found = settle_fine_tuning(config, choose_fine_tuning(config))
    for name, value in asked.items():
        assert getattr(found, name) == value
    choices = [*choose_fine_tuning(config).values(), choose_average(config, 100)]
    choices.append(usual_batch(config, 100))
    assert {choice.reason for choice in choices} == {"set by you"}


@pytest.mark.parametrize("training", [100, 1000, 2000, 5000, 100_000])
def test_few_images_are_fine_tuned_with_in_smaller_batches(training):
    size = usual_batch(make_config(TUNED), training).value
    assert size in (32, 64, 128)
    assert size == 32 or training >= 30 * size
    assert size == 128 or training < 60 * size
    assert usual_batch(make_config({}), training).value == 128


def test_layer_wise_rates_fall_from_the_head_down():
    net = make_model("resnet10t", (3, 32, 32), 2)
    rates = {
        id(one): group["lr_scale"]
        for group in make_optimizer(net, "adamw", 1e-3, 0.05, 0.9, 0.8).param_groups
        for one in group["params"]
    }
    assert len(rates) == len(list(net.parameters()))
    assert {rates[id(one)] for one in require_head(net).parameters()} == {1.0}
    in_order = [rates[id(one)] for name, one in net.named_parameters() if "conv" in name]
    assert in_order == sorted(in_order)
    powers = {round(0.8**n, 9) for n in range(30)}
    assert {round(rate, 9) for rate in rates.values()} <= powers
    assert len(set(rates.values())) > 3


def one_weight(value):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, value)
    return layer


def test_an_average_from_a_good_start_counts_it_like_any_other():
    decay = 0.9
    average, expected = MovingAverage(one_weight(5.0), decay, has_good_start=True), 5.0
    for step, value in enumerate([1.0, -2.0, 3.0, 8.0]):
        average.update(one_weight(value), step)
        expected = decay * expected + (1 - decay) * value
    assert average.model.weight.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("steps", [12, 60, 600])
def test_a_twentieth_of_the_start_is_left_in_the_average(steps):
    decay = choose_average(make_config(TUNED), steps).value
    average = MovingAverage(one_weight(1.0), decay, has_good_start=True)
    for step in range(steps):
        average.update(one_weight(0.0), step)
    assert average.model.weight.item() == pytest.approx(0.04, abs=0.012)


def test_a_run_writes_down_what_it_chose_and_repeats_it(bars, tmp_path):
    quick = {"image_size": 32, "threads": 1, "reporter": SilentReporter()}
    plain = {"model": "test_resnet", "epochs": 1, **quick}
    backbone = onsight.train(bars, out=tmp_path / "backbone", batch_size=16, **plain)
    run = onsight.train(bars, out=tmp_path / "run", weights=str(backbone.model), **plain)
    plan = json.loads((run.path / "plan.json").read_text())
    config = tomllib.loads((run.path / "config.toml").read_text())
    for name in ("layer_decay", "norm_statistics", "crop_area", "ema", "batch_size"):
        assert plan[name]["value"] == config[name]
        assert plan[name]["reason"] not in ("", "set by you")
    assert config["batch_size"] == 32
    again = onsight.train(
        bars,
        out=tmp_path / "again",
        config_file=run.path / "config.toml",
        reporter=SilentReporter(),
    )
    assert again.results["loss"] == run.results["loss"]
