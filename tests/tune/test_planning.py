"""The measured plan of a small run: what is measured, kept, refused and recorded."""

import gc
import json
import os
import signal
import tomllib
import types
import weakref
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby

import pytest
import torch
from prepared import make_job, make_prepared

from onsight.config import make_config
from onsight.errors import ConfigError, DiskError, Interrupted, NonFiniteLoss
from onsight.models.classic import LeNet
from onsight.report.console import Reporter, SilentReporter
from onsight.tensorfile import read_tensors
from onsight.training import members as running
from onsight.training import place
from onsight.training.run import train
from onsight.tune import compute, planning, probe
from onsight.tune.compute import default_options, open_stages
from onsight.tune.folds import expected_seconds, forward_flops
from onsight.tune.planning import choose_compute

CPU = torch.device("cpu")
FIELDS = {"learning_rate": 0.01, "model": "lenet", "image_size": "32", "batch_size": 16}


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    """Whatever else runs beside the tests."""
    monkeypatch.setattr(planning, "is_busy", lambda: False)


@pytest.fixture
def timed(monkeypatch):
    """A function that fakes the seconds per step by options and counts how often each is timed."""
    counts = {}

    def plant(seconds):
        def time_step(self, options):
            counts[options] = counts.get(options, 0) + 1
            return seconds(options)

        monkeypatch.setattr(probe.Probe, "_time_step", time_step)
        return counts

    return plant


def choose(bars, folder, seconds=100.0, **fields):
    kept = {"cache_folder": str(folder or "none"), "plan": "fresh"}
    config, data = make_prepared(bars, **(FIELDS | kept | fields))
    return config, choose_compute(config, data, SilentReporter(), seconds)


def two_cores(monkeypatch):
    cores(monkeypatch, 2)


def cores(monkeypatch, count):
    for name in (
        "onsight.tune.plan",
        "onsight.tune.compute",
        "onsight.tune.planning",
    ):
        monkeypatch.setattr(f"{name}.usable_cores", lambda: count)


def test_the_fastest_options_are_chosen_with_their_figures(bars, tmp_path, timed, monkeypatch):
    two_cores(monkeypatch)
    cost = {"bf16": 0.5, "fp32": 1.0}
    layout = {"contiguous": 2.0, "auto": 1.0}
    timed(
        lambda options: (
            cost[options.precision] * layout[options.memory_format] * options.threads / 100
        )
    )
    config, plan = choose(bars, tmp_path)
    chosen = {name: choice.value for name, choice in plan.choices().items()}
    assert chosen == {
        "precision": "bf16",
        "threads": 1,
        "memory_format": "auto",
        "compile": "off",
        "accumulate": 1,
        "cuda_graph": "off",
    }
    assert plan.threads.reason == (
        "2.00 times as fast: 3,200 against 1,600 images/s with bf16, 2 threads"
    )
    assert plan.precision.reason.endswith("1,600 images/s with fp32, 1 thread")
    assert plan.memory_format.reason.startswith("2.00 times as fast")
    settled = plan.apply(config)
    assert (settled.precision, settled.threads, settled.plan) == ("bf16", 1, "default")
    assert [row["images_per_second"] for row in plan.measured.value][:1] == [800.0]


def test_steps_as_a_graph_are_tried_where_there_are_graphs_and_taken_if_faster(
    bars, tmp_path, timed, monkeypatch
):
    cores(monkeypatch, 1)
    timed(lambda options: 0.01 if options.cuda_graph == "on" else 0.05)
    assert choose(bars, tmp_path)[1].cuda_graph.value == "off"
    monkeypatch.setattr("onsight.tune.compute.has_graphs", lambda device: True)
    plan = choose(bars, tmp_path, plan="fresh")[1]
    assert plan.cuda_graph.value == "on"
    assert plan.cuda_graph.reason.startswith("5.00 times as fast")
    for fields in ({"cuda_graph": "off"}, {"optimizer": "lamb"}):
        assert choose(bars, tmp_path, plan="fresh", **fields)[1].cuda_graph.value == "off"


def test_a_kept_plan_is_used_until_machine_versions_or_shapes_change(
    bars, tmp_path, timed, monkeypatch
):
    two_cores(monkeypatch)
    counts = timed(lambda options: 0.01 / options.threads)
    by_rule = choose(bars, tmp_path, plan="auto")[1]
    assert "by rule" in by_rule.measured.reason
    first = choose(bars, tmp_path)[1]
    assert sum(counts.values()) > 0
    counts.clear()

    def is_kept(**fields):
        plan = choose(bars, tmp_path, **fields | {"plan": "auto"})[1]
        return plan.measured.reason == "kept from an earlier run"

    assert is_kept()
    assert choose(bars, tmp_path, plan="auto")[1].choices() == first.choices()
    assert not is_kept(batch_size=8)
    assert not is_kept(image_size="40")
    assert is_kept(seed=5)
    assert not is_kept(clip_norm=1.0)
    assert not is_kept(seconds=7200.0)  # long enough to try compiling
    assert is_kept(seconds=200.0)
    with monkeypatch.context() as changed:
        newer = types.SimpleNamespace(__version__="99.0")
        changed.setattr("onsight.tune.planning.torch", newer)
        assert not is_kept()
    with monkeypatch.context() as changed:
        changed.setattr("onsight.tune.planning.describe_device", lambda device: "other")
        assert not is_kept()
    with monkeypatch.context() as changed:  # settings that torch has read at its start
        changed.setenv("OMP_WAIT_POLICY", "passive")
        assert not is_kept()
    assert is_kept()
    assert not counts  # no clock decided any of these
    choose(bars, tmp_path, plan="auto", budget="5m")
    assert counts
    for file in (tmp_path / "plans").iterdir():
        file.write_text("{}")
    assert not is_kept()


def test_a_plan_measured_on_a_busy_machine_is_not_kept(bars, tmp_path, timed, monkeypatch):
    monkeypatch.setattr(planning, "is_busy", lambda: True)
    counts = timed(lambda options: 0.01)
    choose(bars, tmp_path)
    assert counts
    assert not (tmp_path / "plans").exists()


def test_a_cache_that_cannot_be_written_does_not_stop_the_run(bars, tmp_path, timed, capsys):
    timed(lambda options: 0.01)
    blocked = tmp_path / "cache"
    blocked.mkdir()
    (blocked / "plans").touch()
    config, data = make_prepared(bars, plan="fresh", **FIELDS)
    settled = config.model_copy(update={"cache_folder": str(blocked)})
    choose_compute(settled, data, Reporter(), 100.0)
    assert "the plan could not be kept for the next run" in capsys.readouterr().err


def test_a_full_disk_does_not_stop_the_run(bars, tmp_path, timed, capsys, monkeypatch):
    def refuse(path, facts):
        raise DiskError(f"{path}: no space left")

    monkeypatch.setattr("onsight.data.cache.write_json", refuse)
    timed(lambda options: 0.01)
    config, data = make_prepared(bars, plan="fresh", **FIELDS)
    settled = config.model_copy(update={"cache_folder": str(tmp_path)})
    choose_compute(settled, data, Reporter(), 100.0)
    assert "the plan could not be kept for the next run" in capsys.readouterr().err


def test_what_the_user_sets_is_not_measured(bars, tmp_path, timed, monkeypatch):
    two_cores(monkeypatch)
    counts = timed(lambda options: 0.01)
    plan = choose(bars, tmp_path, plan="default")[1]
    assert counts == {}
    assert plan.measured.reason == "not measured: set by you"
    asked = {"precision": "fp32", "threads": 2, "memory_format": "channels_last"}
    plan = choose(bars, tmp_path, **asked)[1]
    assert counts == {}
    assert {plan.choices()[name].reason for name in asked} == {"set by you"}
    plan = choose(bars, tmp_path, precision="bf16", accumulate=2)[1]
    assert plan.accumulate.reason == "set by you"
    plan = choose(bars, tmp_path, precision="bf16")[1]
    assert plan.accumulate.reason == "a whole batch fits in memory"
    assert {row["precision"] for row in plan.measured.value} == {"bf16"}


def test_a_short_run_is_not_measured(bars, tmp_path):
    run = train(
        bars, out=tmp_path / "run", reporter=SilentReporter(), epochs=1, plan="fresh", **FIELDS
    )
    plan = json.loads((run.path / "plan.json").read_text())
    assert "the run is too short" in plan["measured"]["reason"]


def test_a_short_run_of_many_steps_replays_graphs_where_there_are_any(bars, monkeypatch):
    monkeypatch.setattr("onsight.tune.compute.has_graphs", lambda device: True)
    values = {}
    for epochs in (1, 100):
        plan = choose(bars, None, seconds=5.0, epochs=epochs)[1]
        assert "the run is too short" in plan.cuda_graph.reason
        values[epochs] = plan.cuda_graph.value
    assert values == {1: "off", 100: "on"}
    assert choose(bars, None, 5.0, epochs=100, cuda_graph="off")[1].cuda_graph.value == "off"
    assert choose(bars, None, 5.0, epochs=100, plan="default")[1].cuda_graph.value == "off"


def test_a_compiled_way_is_not_judged_by_the_steps_that_record_its_graphs(bars, monkeypatch):
    real = probe.Trial
    spent = {"off": 1.0, "on": 0.5}
    recording = {1: 60.0, 2: 9.0, 3: 9.0}  # compiling, and torch's two recordings of CUDA graphs

    class Recorded(real):
        done = 0

        def timer(self, batch_size):
            timed, way = super().timer(batch_size), self.config.compile
            self.config = self.config.model_copy(update={"compile": "off"})

            def faked(steps):
                timed(steps)
                numbers = range(self.done + 1, self.done + steps + 1)
                self.done += steps
                late = recording if way == "on" else {}
                return sum(late.get(number, spent[way]) for number in numbers)

            return faked

    monkeypatch.setattr(probe, "Trial", Recorded)
    monkeypatch.setattr("onsight.step.build.Compiled", lambda *given: None)
    monkeypatch.setattr("onsight.tune.compute.shutil.which", lambda name: "/usr/bin/c++")
    asked = {"threads": 1, "precision": "fp32", "memory_format": "contiguous"}
    _, plan = choose(bars, None, seconds=7200.0, **asked)
    assert plan.compile.value == "on"
    assert plan.compile.reason.startswith("2.00 times as fast")


def test_networks_that_lost_are_freed_while_the_others_are_timed(bars, monkeypatch):
    real = probe.Trial
    alive, at_once = weakref.WeakSet(), []
    cost = {(4, "auto"): 9.0, (1, "auto"): 1.0, (2, "auto"): 1.2, (1, "contiguous"): 9.0}

    class Counted(real):
        def __init__(self, config, data):
            super().__init__(config, data)
            alive.add(self)

        def timer(self, batch_size):
            timed = super().timer(batch_size)

            def faked(steps):
                timed(steps)
                at_once.append(len(alive))
                return steps * cost[self.config.threads, self.config.memory_format]

            return faked

    monkeypatch.setattr(probe, "Trial", Counted)
    cores(monkeypatch, 4)
    gc.disable()  # freed at once, not when Python gets round to it
    try:
        choose(bars, None, precision="fp32")
    finally:
        gc.enable()
    # Three numbers of threads, of which one is hopeless; then two formats with the best.
    assert [count for count, _ in groupby(at_once)] == [1, 2, 3, 2, 1, 2]
    assert not alive


def test_options_with_another_loss_are_refused(bars, tmp_path, monkeypatch):
    two_cores(monkeypatch)
    real = probe.Trial

    class Off(real):
        def timer(self, batch_size):
            timed = super().timer(batch_size)

            def off(steps):
                seconds = timed(steps)
                if self.config.precision == "bf16":
                    self.losses[:] = [1.05 * loss for loss in self.losses]
                    return seconds / 1000
                return seconds

            return off

    monkeypatch.setattr(probe, "Trial", Off)
    _, plan = choose(bars, None, threads=1)
    assert plan.precision.value == "fp32"
    assert "bf16, 1 thread was refused: its loss is" in plan.precision.reason
    assert [row["refused"] for row in plan.measured.value if "refused" in row]


@pytest.mark.parametrize(
    ("reference", "loss", "is_refused"),
    [("bf16", 1.002, False), ("bf16", 1.03, True), ("fp32", 1.002, True)],
)
def test_losses_may_differ_by_the_rounding_of_the_reference(bars, reference, loss, is_refused):
    config, data = make_prepared(bars, **FIELDS)
    options = default_options(config, CPU, 1)
    compared = probe.Probe(config, data)

    def check(loss, precision):
        trial = types.SimpleNamespace(losses=[loss], flush=lambda: None)
        compared._check_losses(trial, replace(options, precision=precision))

    check(1.0, reference)
    with pytest.raises(probe._Refused) if is_refused else nullcontext():
        check(loss, "fp32")


def test_options_that_fail_are_refused_except_the_default_ones(bars, monkeypatch):
    real = probe.Trial

    def failing(kinds):
        class Failing(real):
            def timer(self, batch_size):
                if self.config.precision in kinds:
                    raise RuntimeError("not implemented for 'BFloat16'")
                return super().timer(batch_size)

        return Failing

    monkeypatch.setattr(probe, "Trial", failing({"bf16"}))
    _, plan = choose(bars, None, threads=1)
    assert "not implemented" in plan.precision.reason
    monkeypatch.setattr(probe, "Trial", failing({"fp32", "bf16"}))
    with pytest.raises(RuntimeError, match="BFloat16"):
        choose(bars, None, threads=1)


def test_a_learning_rate_that_is_too_high_is_reported_before_training(bars):
    with pytest.raises(NonFiniteLoss, match="try a lower --learning-rate"):
        choose(bars, None, threads=1, learning_rate=1e30, optimizer="sgd")


def test_out_of_memory_while_measuring_halves_the_size_of_the_parts(bars, monkeypatch):
    real = probe.Trial

    class Small(real):
        def timer(self, batch_size):
            if batch_size / self.config.accumulate > 4:
                raise torch.OutOfMemoryError("out of memory")
            return super().timer(batch_size)

    monkeypatch.setattr(probe, "Trial", Small)
    config, plan = choose(bars, None, threads=1)
    assert (plan.accumulate.value, plan.accumulate.reason) == (
        4,
        "memory ran out with fewer parts",
    )
    assert plan.apply(config).accumulate == 4


@pytest.mark.parametrize("kept", [True, False])
def test_a_measured_run_can_be_repeated_to_the_bit(bars, tmp_path, monkeypatch, kept):
    monkeypatch.setattr(planning, "_MIN_RUN_SECONDS", 0.0)
    fields = FIELDS | {"epochs": 2, "cache_folder": str(tmp_path / "cache")}
    first = train(bars, out=tmp_path / "a", reporter=SilentReporter(), plan="fresh", **fields)
    saved = tomllib.loads((first.path / "config.toml").read_text())
    assert saved["plan"] == "default"
    assert saved["threads"] > 0
    again = fields
    if not kept:
        again = {"config_file": first.path / "config.toml", "cache_folder": fields["cache_folder"]}
    second = train(bars, out=tmp_path / "b", reporter=SilentReporter(), **again)
    one, other = (
        read_tensors(run.path / "checkpoints" / "best.safetensors")[0] for run in (first, second)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    plan = json.loads((second.path / "plan.json").read_text())
    assert ("kept from an earlier run" in plan["measured"]["reason"]) == kept


def test_the_peak_memory_that_is_reported_is_not_that_of_measuring(bars, tmp_path, monkeypatch):
    happened = []

    def noting(owner, name, what):
        real = getattr(owner, name)

        def noted(*given, **named):
            happened.append(what)
            return real(*given, **named)

        monkeypatch.setattr(owner, name, noted)

    noting(probe.Probe, "measure", "measured")
    noting(running, "reset_peak_device_memory", "reset")
    noting(running, "fit", "trained")
    monkeypatch.setattr(planning, "_MIN_RUN_SECONDS", 0.0)
    train(bars, out=tmp_path / "run", reporter=SilentReporter(), epochs=1, plan="fresh", **FIELDS)
    assert happened == ["measured", "reset", "trained"]


class Room(torch.nn.Module):
    """A network in float64 with memory to train on only this many images at once.

    first: calls in training before memory is so short; interrupt: calls before a signal comes.
    """

    def __init__(self, images, first=0, interrupt=0):
        super().__init__()
        torch.manual_seed(0)
        self.net = LeNet((1, 32, 32), 2).double()
        self.images, self.first, self.interrupt = images, first, interrupt
        self.calls = 0

    def forward(self, inputs):
        if torch.is_grad_enabled():
            self.calls += 1
            if self.calls == self.interrupt:
                os.kill(os.getpid(), signal.SIGTERM)
            if self.calls > self.first and len(inputs) > self.images:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return self.net(inputs.double())


def best_weights(run):
    return read_tensors(run / "checkpoints" / "best.safetensors")[0]


def decisions_of(run):
    """The name and the value of each line."""
    lines = map(json.loads, (run / "decisions.jsonl").read_text().splitlines())
    return {line["decision"]: line["value"] for line in lines}


def repeated(bars, out, run):
    """The best weights of a run with the settings of another and enough memory."""
    config_file = run / "config.toml"
    reporter = SilentReporter()
    train(bars, out=out, reporter=reporter, config_file=config_file, model=Room(100))
    return best_weights(out)


IN_MEMORY = FIELDS | {"epochs": 2, "optimizer": "sgd", "validation_fraction": 0.0}


def test_training_that_runs_out_of_memory_continues_with_smaller_parts(bars, tmp_path, capsys):
    plain, run = (
        train(bars, out=tmp_path / str(n), reporter=Reporter(), **IN_MEMORY | {"model": Room(n)})
        for n in (100, 8)
    )
    assert "out of memory: each batch is now computed in 2 parts" in capsys.readouterr().err
    assert decisions_of(run.path)["accumulate from epoch 0, step 0"] == 2
    assert not (plain.path / "decisions.jsonl").exists()
    one, other = best_weights(plain.path), best_weights(run.path)
    assert all(torch.allclose(one[name], other[name], rtol=1e-10, atol=1e-10) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    again = repeated(bars, tmp_path / "again", run.path)
    assert all(torch.equal(again[name], other[name]) for name in other)


def test_memory_that_runs_out_in_the_middle_of_an_epoch_does_so_again_at_its_step(bars, tmp_path):
    fields = IN_MEMORY | {"model": Room(8, first=3), "plan": "default"}
    run = train(bars, out=tmp_path / "run", reporter=SilentReporter(), **fields)
    name = "accumulate from epoch 0, step 3"
    assert decisions_of(run.path)[name] == 2
    other = best_weights(run.path)
    again = repeated(bars, tmp_path / "again", run.path)
    assert all(torch.equal(again[tensor], other[tensor]) for tensor in other)
    assert decisions_of(tmp_path / "again")[name] == 2


def test_a_resumed_run_still_computes_in_smaller_parts(bars, tmp_path):
    def run(name, net, **fields):
        fields["model"] = net
        return train(bars, out=tmp_path / name, reporter=SilentReporter(), **fields)

    fields = IN_MEMORY | {"plan": "default"}
    whole = run("whole", Room(8, first=3), **fields)
    with pytest.raises(Interrupted):  # in the second step that is computed in two parts
        run("stopped", Room(8, first=3, interrupt=8), **fields)
    run("stopped", Room(100), resume=True)
    one, other = best_weights(whole.path), best_weights(tmp_path / "stopped")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert decisions_of(tmp_path / "stopped") == decisions_of(whole.path)
    again = repeated(bars, tmp_path / "again", tmp_path / "stopped")
    assert all(torch.equal(one[name], again[name]) for name in one)


def test_which_options_are_tried(monkeypatch):
    two_cores(monkeypatch)

    def prepared(net, device=CPU):
        return types.SimpleNamespace(device=device, new_network=lambda config: net)

    config, convolving = make_config({}), prepared(torch.nn.Conv2d(3, 4, 3))
    plain = default_options(config, CPU, 2)
    grid, formats = [stage(plain) for stage in open_stages(config, convolving, 60)]
    assert grid[0] == plain
    assert [(options.precision, options.threads) for options in grid] == [
        ("fp32", 2), ("fp32", 1), ("bf16", 2), ("bf16", 1)
    ]  # fmt: skip
    assert [options.memory_format for options in formats] == ["auto", "contiguous"]
    assert len(open_stages(config, prepared(torch.nn.Linear(2, 2)), 60)) == 1
    assert len(open_stages(config, convolving, 6000)) == 3
    with monkeypatch.context() as patch:  # as depthwise convolutions on a GPU
        patch.setattr(compute, "starts_slowly", lambda net, device: True)
        assert len(open_stages(config, convolving, 60)) == 1
        formats = open_stages(config, convolving, 6000)[1](plain)
        assert [options.memory_format for options in formats] == ["auto", "channels_last"]
    monkeypatch.setattr("onsight.tune.compute.shutil.which", lambda name: None)
    assert len(open_stages(config, convolving, 6000)) == 2
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    gpu = prepared(convolving.new_network(config), torch.device("cuda:0"))
    graphs, precisions = (stage(plain) for stage in open_stages(config, gpu, 60)[:2])
    assert [options.cuda_graph for options in graphs] == ["off", "on"]
    assert [options.precision for options in precisions] == ["bf16", "fp32", "fp16"]


def test_auto_does_not_compile_for_several_ranks(bars, timed):
    timed(lambda options: 0.01)
    config, data = make_prepared(bars, **FIELDS)
    job = make_job(world=types.SimpleNamespace(size=2))
    plan = place._choose_compute(config, data, job, 1e6)
    assert (plan.compile.value, plan.measured.value) == ("off", [])


def test_the_work_of_a_step_is_estimated_from_its_layers():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5), torch.nn.Flatten(), torch.nn.Linear(32, 4))
    assert forward_flops(net, (3, 6, 6), CPU) == 2 * (8 * 2 * 2 * 75 + 32 * 4)
    assert net.training
    one = expected_seconds(net, (3, 6, 6), 1000, 10, CPU)
    assert expected_seconds(net, (3, 6, 6), 2000, 20, CPU) == pytest.approx(2 * one)


def test_bf16_is_not_used_on_a_cpu_that_would_compute_wrong_gradients(bars):
    _, plan = choose(bars, None, threads=1, model="test_resnet", image_size=16)
    assert plan.precision.value == "fp32"
    assert "bf16, 1 thread was refused: torch computes a wrong bf16" in plan.precision.reason
    with pytest.raises(
        ConfigError, match=r"layer4\.0\.conv1\.weight .* use --precision fp32 or a larger"
    ):
        choose(bars, None, threads=1, model="test_resnet", image_size=16, precision="bf16")
