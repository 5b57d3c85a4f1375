"""Accelerators are mocked in torch's own functions: no test needs a real one."""

import types

import pytest
import torch

from onsight.config import make_config
from onsight.errors import ConfigError, DeviceError
from onsight.hardware import devices
from onsight.hardware.memory import (
    peak_device_memory_bytes,
    peak_memory_bytes,
    reset_peak_device_memory,
)
from onsight.tune import plan as plan_module
from onsight.tune.compute import ComputeOptions
from onsight.tune.plan import choose_precision, with_tf32_named
from onsight.tune.planning import unmeasured_plan
from onsight_explain import devices as explain_devices
from onsight_explain import host_memory, threads
from onsight_explain.python_process import seconds_since_start


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    facts = types.SimpleNamespace(name="Test GPU", total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**9, 10**9))


def test_without_an_accelerator_auto_is_the_cpu_with_a_reason(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    choice = devices.choose_device("auto")
    assert choice.value == torch.device("cpu")
    assert "no accelerator" in choice.reason


def test_auto_takes_the_first_gpu(two_gpus):
    choice = devices.choose_device("auto")
    assert choice.value == torch.device("cuda:0")
    assert "of 2" in choice.reason


@pytest.mark.parametrize(
    ("asked", "expected"), [("cuda:1", "cuda:1"), ("cuda", "cuda:0"), ("cpu", "cpu")]
)
def test_the_requested_device_is_used(two_gpus, asked, expected):
    assert devices.choose_device(asked).value == torch.device(expected)


@pytest.mark.parametrize("asked", ["cuda:2", "mps", "xpu", "tpu", "cuda:x", ""])
def test_the_error_for_a_missing_device_lists_the_available_ones(two_gpus, asked):
    with pytest.raises(DeviceError, match="available: cuda:0, cuda:1, cpu"):
        devices.choose_device(asked)


@pytest.mark.parametrize(
    ("asked", "ranks", "expected"),
    [
        ("auto", 0, ["cuda:0"]),
        ("auto", 1, ["cuda:0"]),
        ("auto", 3, ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda", 0, ["cuda:0"]),
        ("cuda", 2, ["cuda:0", "cuda:1"]),
        ("cuda:2", 0, ["cuda:2"]),
        ("cuda:2", 1, ["cuda:2"]),
        ("all", 0, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        ("all", 4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        ("cuda:0,cuda:2", 0, ["cuda:0", "cuda:2"]),
        ("cuda:3, cuda:1", 2, ["cuda:3", "cuda:1"]),
        ("cpu", 0, ["cpu"]),
        ("cpu", 3, ["cpu", "cpu", "cpu"]),
    ],
)
def test_each_rank_gets_the_device_asked_for(two_gpus, monkeypatch, asked, ranks, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    chosen = devices.choose_devices(asked, ranks)
    assert chosen.value == [torch.device(name) for name in expected]
    assert chosen.reason


@pytest.mark.parametrize(
    ("asked", "ranks", "message"),
    [
        ("cuda:0,cuda:0", 0, "each named once"),
        ("cuda,cuda:0", 0, "each named once"),
        ("cuda:0,cpu", 0, "must be of one kind"),
        ("cpu,cpu", 0, "each named once"),
        ("cuda:0,cuda:7", 0, "no device 'cuda:7'"),
        ("cuda:0,", 0, "no device ''"),
        ("all,cpu", 0, "no device 'all'"),
        ("all", 3, "names 2 device.* for 3 ranks"),
        ("cuda:1", 2, "names 1 device.* for 2 ranks"),
        ("cuda:0,cuda:1", 3, "names 2 device.* for 3 ranks"),
        ("auto", 3, "3 ranks need 3 devices, but there are only cuda:0, cuda:1"),
        ("cuda", 3, "3 ranks need 3 devices"),
    ],
)
def test_ranks_and_devices_that_do_not_match_are_refused(two_gpus, asked, ranks, message):
    with pytest.raises(DeviceError, match=message):
        devices.choose_devices(asked, ranks)


@pytest.mark.parametrize("asked", ["auto", "all", "cuda", "cuda:0"])
def test_a_rank_that_is_shown_one_gpu_takes_it(two_gpus, monkeypatch, asked):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    chosen = devices.choose_rank_device(asked, 3, 4)
    assert chosen.value == torch.device("cuda:0")
    assert "visible" in chosen.reason


def test_a_rank_that_is_shown_several_gpus_takes_its_own(two_gpus, monkeypatch):
    for rank in range(2):
        assert devices.choose_rank_device("auto", rank, 2).value == torch.device("cuda", rank)
    assert devices.choose_rank_device("cpu", 1, 2).value == torch.device("cpu")
    with pytest.raises(DeviceError, match="3 ranks need 3 devices"):
        devices.choose_rank_device("auto", 1, 3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert devices.choose_rank_device("cpu", 1, 2).value == torch.device("cpu")
    assert "shown" not in devices.choose_rank_device("auto", 0, 1).reason  # alone on its machine


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("", "a1"), ("0", "a1"), ("MIG-1", "MIG-1"), ("MIG-1,MIG-2", "MIG-1"), ("GPU-a1", "a1")],
)
def test_a_gpu_or_its_slice_is_told_from_all_others(monkeypatch, visible, expected):
    facts = types.SimpleNamespace(uuid="a1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.physical_device(torch.device("cuda:0")) == expected
    assert devices.physical_device(torch.device("cpu")) == ""


@pytest.mark.parametrize(("asked", "ranks"), [("all", 0), ("auto", 0), ("all", 2), ("auto", 2)])
def test_without_an_accelerator_ranks_share_the_cpu(monkeypatch, asked, ranks):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    chosen = devices.choose_devices(asked, ranks).value
    assert chosen == [torch.device("cpu")] * max(1, ranks)


def test_an_apple_gpu_is_one_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.choose_devices("all", 0).value == [torch.device("mps")]
    with pytest.raises(DeviceError, match="2 ranks need 2 devices"):
        devices.choose_devices("auto", 2)


def test_a_cpu_only_torch_with_a_driver_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(devices.Path, "exists", lambda path: "nvidia" in str(path))
    with pytest.raises(DeviceError, match="CPU-only build"):
        devices.choose_device("cuda:0")


def test_devices_are_described(two_gpus):
    assert devices.describe_device(torch.device("cuda:0")) == "Test GPU, 80 GiB"
    assert "cores" in devices.describe_device(torch.device("cpu"))


def test_precision_follows_the_device(two_gpus):
    assert choose_precision("auto", torch.device("cuda:0")).value == "bf16"
    assert choose_precision("auto", torch.device("cpu")).value == "fp32"
    assert choose_precision("fp16", torch.device("cuda:0")).value == "fp16"
    with pytest.raises(ConfigError, match="needs a GPU"):
        choose_precision("fp16", torch.device("cpu"))


def test_precision_is_that_of_the_given_gpu_among_several_generations(two_gpus, monkeypatch):
    generations = [(9, 0), (7, 5)]
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: generations[device.index]
    )
    assert choose_precision("auto", torch.device("cuda:0")).value == "bf16"
    assert choose_precision("auto", torch.device("cuda:1")).value == "fp32"


@pytest.mark.parametrize(
    ("device", "precision", "convolutions", "is_named"),
    [
        ("cuda:0", "fp32", "tf32", True),
        ("cuda:0", "fp32", "ieee", False),
        ("cuda:0", "bf16", "tf32", False),
        ("cuda:1", "fp32", "tf32", False),  # of a generation without it
        ("cpu", "fp32", "tf32", False),
    ],
)
def test_fp32_says_where_it_is_rounded(monkeypatch, device, precision, convolutions, is_named):
    generations = [(9, 0), (7, 5)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: generations[gpu.index])
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"  # torch's default
    settings = types.SimpleNamespace(fp32_precision=convolutions)
    monkeypatch.setattr(plan_module, "_CUDNN", types.SimpleNamespace(conv=settings))
    options = ComputeOptions(precision, "auto", 1, "off", 1)
    unmeasured = unmeasured_plan(make_config({}), options, "not measured")
    named = with_tf32_named(unmeasured, torch.device(device)).precision
    assert (named.value, named.reason.startswith("not measured")) == (precision, True)
    assert ("TF32" in named.reason) is is_named


@pytest.mark.parametrize(
    ("limit", "used", "expected"), [("3000000", "1000000", 2_000_000), ("5000", "6000", 0)]
)
@pytest.mark.parametrize(
    "names",
    [
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ],
)
def test_free_memory_respects_the_cgroups_limit(
    monkeypatch, tmp_path, names, limit, used, expected
):
    cpu = torch.device("cpu")
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path)
    assert explain_devices.free_memory_bytes(cpu) > 10_000_000  # no limit: all of the machine's
    (tmp_path / "memory").mkdir()
    for name, text in zip(names, (limit, used), strict=True):
        (tmp_path / name).write_text(text)
    assert explain_devices.free_memory_bytes(cpu) == expected
    figures = (tmp_path / names[1]).with_name("memory.stat")
    figures.write_text("active_file 7\ninactive_file 50000\n")
    assert explain_devices.free_memory_bytes(cpu) == max(0, int(limit) - int(used) + 50_000)
    (tmp_path / names[0]).write_text("max")
    assert explain_devices.free_memory_bytes(cpu) > 10_000_000


@pytest.mark.parametrize(
    ("text", "expected"), [("150000 100000", 1), ("max 100000", 8), ("400000 100000", 4)]
)
def test_cores_respect_the_cgroup_quota(monkeypatch, tmp_path, text, expected):
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(threads, "_CGROUP", tmp_path)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: set(range(8)))
    assert threads.usable_cores() == expected


def test_usage_is_plausible():
    first, second = seconds_since_start(), seconds_since_start()
    assert 0 < first <= second
    assert peak_memory_bytes() > 50e6


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_the_peak_memory_of_a_device_can_begin_anew(monkeypatch, kind):
    peaks = {f"{kind}:0": 5, f"{kind}:1": 7}
    backend = getattr(torch, kind)
    monkeypatch.setattr(backend, "max_memory_allocated", lambda device: peaks[str(device)])
    monkeypatch.setattr(
        backend, "reset_peak_memory_stats", lambda device: peaks.update({str(device): 0})
    )
    reset_peak_device_memory(torch.device(kind, 1))
    assert [peak_device_memory_bytes(torch.device(kind, n)) for n in (0, 1)] == [5, 0]


@pytest.mark.parametrize("kind", ["cpu", "mps"])
def test_a_device_without_a_peak_has_none_to_forget(kind):
    reset_peak_device_memory(torch.device(kind))
    assert peak_device_memory_bytes(torch.device(kind)) == 0
