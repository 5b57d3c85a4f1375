"""Parts of a batch on a CPU. Oracles: counts by hand, and the same update in float64."""

import json
import tomllib

import pytest
import torch
from prepared import make_prepared
from torch import nn

from onsight.models.head import set_training_mode
from onsight.ranks.world import World
from onsight.report.console import Reporter, SilentReporter
from onsight.step.build import make_net, make_step
from onsight.tensorfile import read_tensors
from onsight.training import place
from onsight.training.run import train
from onsight.tune import parts
from onsight.tune.parts import choose_parts, count_saved_bytes

CPU = torch.device("cpu")
FROZEN = {"norm_statistics": "frozen", "image_size": "32", "batch_size": 64, "model": "compact"}
PLENTY = 1e12


@pytest.fixture
def prepared(bars):
    """Of a network with frozen statistics of batch norm."""
    return make_prepared(bars, **FROZEN)


def test_what_a_forward_pass_keeps_is_counted_once_and_without_weights():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    inputs = torch.zeros(2, 3, 2, 2)
    assert count_saved_bytes(net, inputs) == 4 * (2 * 12 + 2 * 5)
    assert count_saved_bytes(net.double(), inputs.double()) == 8 * (2 * 12 + 2 * 5)
    with torch.no_grad():
        assert count_saved_bytes(net, inputs.double()) > 0


def test_a_part_keeps_at_most_the_limit(prepared, monkeypatch):
    config, data = prepared
    each = choose_parts(data.new_network(config), config, data, 1, PLENTY)[0].figure
    limits = {64 * each: 1, 64 * each - 1: 2, 16 * each: 4, 16 * each - 1: 8, each: 64, 1: 64}
    for limit, count in limits.items():
        monkeypatch.setattr(parts, "STEP_BYTES", limit)
        assert choose_parts(data.new_network(config), config, data, 1, PLENTY)[0].value == count
    monkeypatch.setattr(parts, "STEP_BYTES", 16 * each)
    assert (
        choose_parts(data.new_network(config), config, data, 2, PLENTY)[0].value == 2
    )  # of half a batch for each rank


def test_only_too_little_free_memory_changes_the_number(prepared, monkeypatch):
    config, data = prepared
    each = choose_parts(data.new_network(config), config, data, 1, PLENTY)[0].figure
    monkeypatch.setattr(parts, "STEP_BYTES", 16 * each)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            choice, is_forced = choose_parts(data.new_network(config), config, data, 1, 32 * each)
            assert (choice.value, is_forced) == (4, False)
    finally:
        torch.set_num_threads(threads)
    choice, is_forced = choose_parts(data.new_network(config), config, data, 1, 32 * each - 2)
    assert (choice.value, is_forced) == (8, True)
    assert "half of the" in choice.reason


@pytest.mark.parametrize("fields", [{"accumulate": 1}, {"norm_statistics": "batch"}])
def test_the_users_choice_and_batch_norm_in_training_stay(bars, monkeypatch, fields):
    monkeypatch.setattr(parts, "STEP_BYTES", 1)
    config, data = make_prepared(bars, **FROZEN | fields)
    assert choose_parts(data.new_network(config), config, data, 1, PLENTY) == (None, False)


def test_parts_make_the_update_of_the_whole_batch(prepared):
    config, data = prepared
    weights = []
    for count in (1, 4):
        config = config.model_copy(update={"accumulate": count, "precision": "fp32"})
        net = make_net(config, data.dataset, CPU).double()
        set_training_mode(net, keep_statistics=True)
        step = make_step(config, net, data.dataset, CPU, World())
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            inputs = torch.randn(30, *data.dataset.input_shape, generator=generator).double()
            step(inputs, torch.arange(30) % len(data.dataset.classes))
        weights.append(net.state_dict())
    for name, whole in weights[0].items():
        assert torch.allclose(whole, weights[1][name], rtol=1e-9, atol=1e-12), name


def test_parts_forced_by_memory_are_said_recorded_and_repeated(bars, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(parts, "STEP_BYTES", 10**6)
    fields = {**FROZEN, "epochs": 1, "plan": "default", "precision": "fp32"}

    def run(name, reporter, **fields):
        path = train(bars, out=tmp_path / name, reporter=reporter, **fields).path
        plan = json.loads((path / "plan.json").read_text())["accumulate"]
        config = tomllib.loads((path / "config.toml").read_text())
        assert plan["value"] == config["accumulate"]
        return path, plan, read_tensors(path / "checkpoints" / "best.safetensors")[0]

    usual, plan, _ = run("usual", SilentReporter(), **fields)
    assert plan["value"] > 1
    assert "a part may keep 1.0 MB" in plan["reason"]
    assert not (usual / "decisions.jsonl").exists()

    monkeypatch.setattr(place, "free_memory_bytes", lambda device: 10**6)
    forced, more, weights = run("forced", Reporter(), **fields)
    assert more["value"] == 2 * plan["value"]
    assert f"each batch is computed in {more['value']} parts" in capsys.readouterr().err
    assert (
        '"accumulate", "value": ' + str(more["value"]) in (forced / "decisions.jsonl").read_text()
    )

    monkeypatch.setattr(place, "free_memory_bytes", lambda device: 10**12)
    settings = {"config_file": forced / "config.toml"}
    again = run("again", SilentReporter(), **settings)[2]
    assert all(torch.equal(again[name], weights[name]) for name in weights)
