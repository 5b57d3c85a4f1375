"""Libraries, child processes, ranks and speed: real, and with planted faults."""

import json
import socket

import pytest
import torch
import torch.distributed as dist
import torchvision

from onsight.doctor import machine, software
from onsight.doctor.examine import CHECKS
from onsight.models import timm_nets as weights
from onsight_explain.ceilings import Ceilings

# Parameters that keep each measurement under a tenth of a second.
BRIEFLY = {
    "check_cache_disk": {"test_bytes": 1 << 20, "seconds": 0.05},
    "check_cpu_speed": {"seconds": 0.005},
    "check_gpu_speed": {"seconds": 0.005},
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_every_check_gives_a_line_or_none(check, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("onsight_explain.ceilings._COPY_BYTES", 1 << 20)
    line = check(**BRIEFLY.get(check.__name__, {}))
    if line is None:
        return
    assert line.status in ("ok", "note", "warning", "problem")
    assert line.message.endswith((".", "--pretrained"))
    assert line.remedy or line.status in ("ok", "note")
    assert json.loads(json.dumps(line.figures)) == line.figures
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------- versions


def test_the_installed_versions_fit():
    line = software.check_versions()
    assert line.status == "ok", line
    assert torch.__version__ in line.message
    assert line.figures["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("build", "command"),
    [
        ("2.15.0+cu132", "torchvision --index-url https://download.pytorch.org/whl/cu132"),
        ("2.15.0+cpu", "torchvision --index-url https://download.pytorch.org/whl/cpu"),
        ("2.15.0", "pip install --upgrade torch torchvision"),
        ("2.15.0a0+gitd0f2af8", "pip install --upgrade torch torchvision"),
    ],
)
def test_a_torchvision_built_for_another_torch(monkeypatch, build, command):
    def broken(boxes, scores, threshold):
        raise RuntimeError("operator torchvision::nms does not exist\nmore")

    monkeypatch.setattr(torchvision.ops, "nms", broken)
    monkeypatch.setattr(torch, "__version__", build)
    line = software.check_versions()
    assert line.status == "problem"
    assert line.message.endswith("RuntimeError: operator torchvision::nms does not exist")
    assert line.remedy.endswith(command)


def test_a_torchvision_that_computes_wrong_results(monkeypatch):
    monkeypatch.setattr(torchvision.ops, "nms", lambda *given: torch.tensor([0, 1]))
    assert software.check_versions().status == "problem"


def test_a_missing_library(monkeypatch):
    versions_of = {"timm": None, "simplejpeg": None}
    monkeypatch.setattr(software, "package_version", lambda name: versions_of.get(name, "1.0"))
    line = software.check_versions()
    assert line.status == "problem"
    assert line.remedy.endswith("\npip install timm simplejpeg")


# ----------------------------------------------------------------------- spawn


def test_a_child_that_fails(monkeypatch):
    monkeypatch.setattr(software, "_CHILD_MODULE", "onsight.doctor.absent")
    line = software.check_spawn()
    assert line.status == "problem"
    assert "ended with exit code 1:" in line.message


def test_a_child_that_does_not_answer():
    line = software.check_spawn(deadline_seconds=0)
    assert line.status == "problem"
    assert "did not end within 0 s" in line.message


def test_a_machine_that_cannot_start_more_processes(monkeypatch):
    def refuse(*args, **settings):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen.__init__", refuse)
    line = software.check_spawn()
    assert line.status == "problem"
    assert "could not be started: Resource temporarily unavailable" in line.message
    assert "ulimit -u" in line.remedy


def test_the_child_needs_no_torch():
    import subprocess
    import sys

    script = "import sys, onsight.installation; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


# ----------------------------------------------------------------------- ranks


def test_ranks_without_gloo(monkeypatch):
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    line = software.check_ranks()
    assert line.status == "warning"
    assert "gloo" in line.message
    monkeypatch.setattr(dist, "is_available", lambda: False)
    assert software.check_ranks().figures["nccl"] is False


def test_ranks_without_loopback(monkeypatch):
    def fail(*args, **settings):
        raise OSError(101, "Network is unreachable")  # as where the interface exists but is down

    monkeypatch.setattr(socket, "create_connection", fail)
    line = software.check_ranks()
    assert line.status == "warning"
    assert "loopback" in line.message
    assert line.remedy.endswith("ip link set lo up")


@pytest.mark.parametrize(("gpus", "state"), [(1, "ok"), (2, "warning")])
def test_several_gpus_without_nccl(monkeypatch, gpus, state):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert software.check_ranks().status == state


# ------------------------------------------------------------------ pretrained


@pytest.mark.parametrize("there", [True, False])
def test_pretrained_weights_are_a_note(monkeypatch, there):
    first = weights.OFFLINE_MODEL  # which every installation has
    monkeypatch.setattr(weights, "has_offline_weights", lambda name: there or name == first)
    line = software.check_pretrained()
    assert line.status == "note"
    assert bool(line.remedy) is not there
    assert ("[pretrained]" in line.remedy) is not there
    assert len(line.figures["models"]) == (3 if there else 1)


# ----------------------------------------------------------------------- speed


@pytest.fixture
def ceilings(monkeypatch):
    def give(**fields):
        found = Ceilings(
            flops_per_second=fields.pop("flops", {"fp32": 140e9, "bf16": 420e9}),
            copy_bytes_per_second=15.2e9,
            **fields,
        )
        asked = []

        def measure(device, threads=None, seconds=0.0):
            asked.append((str(device), threads))
            return found

        monkeypatch.setattr(machine, "measure_ceilings", measure)
        return asked

    return give


def test_the_processors_ceilings_in_words(ceilings, monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    asked = ceilings(threads=2)
    line = machine.check_cpu_speed()
    assert asked == [("cpu", 2)]
    assert line.status == "ok"
    assert line.message == (
        "2 threads: matrix products 140 GFLOP/s in fp32, 420 GFLOP/s in bf16 (3.0x); "
        "copies 15.2 GB/s."
    )
    assert line.figures["flops_per_second"]["bf16"] == 420e9


def test_bf16_that_is_slower_is_a_note(ceilings):
    ceilings(flops={"fp32": 100e9, "bf16": 20e9}, threads=2)
    line = machine.check_cpu_speed()
    assert line.status == "note"
    assert "(0.2x)" in line.message
    assert "bf16 is slower here" in line.message


def test_ceilings_of_gpus(ceilings, monkeypatch):
    monkeypatch.setattr(machine, "available_devices", lambda: ["cpu"])
    assert machine.check_gpu_speed() is None
    monkeypatch.setattr(machine, "available_devices", lambda: ["cuda:0", "cuda:1", "cpu"])
    asked = ceilings(pinned_upload_bytes_per_second=25e9)
    line = machine.check_gpu_speed()
    assert [device for device, _ in asked] == ["cuda:0", "cuda:1"]
    assert line.status == "ok"
    assert "uploads 25.0 GB/s; cuda:1:" in line.message
    ceilings(pinned_upload_bytes_per_second=0.8e9)
    line = machine.check_gpu_speed()
    assert line.status == "warning"
    assert "uploads 800 MB/s" in line.message
    assert "to cuda:0, cuda:1 are slow" in line.message
