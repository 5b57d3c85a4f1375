"""Fake machines: nvidia-smi, torch's CUDA and the driver's files."""

import subprocess

import pytest
import torch

from onsight.doctor import gpus, nvidia

A100 = {
    "name": "NVIDIA A100",
    "driver_version": "580.65.06",
    "compute_cap": "8.0",
    "memory.total": "81920",
    "memory.used": "1024",
}


class Smi:
    """A fake nvidia-smi with rows of GPUs and processes; failure: (exit code, message)."""

    def __init__(self):
        self.gpus = []
        self.apps = []
        self.banner = "| NVIDIA-SMI 580.65   Driver Version: 580.65   CUDA Version: 13.0 |"
        self.failure = None
        self.is_installed = True
        self.calls = []

    def run(self, command, **options):
        assert command[0] == "nvidia-smi"
        assert options["timeout"] > 0
        self.calls.append(command)
        if not self.is_installed:
            raise FileNotFoundError(command[0])
        if self.failure:
            return subprocess.CompletedProcess(command, self.failure[0], self.failure[1], "")
        if len(command) == 1:
            return subprocess.CompletedProcess(command, 0, self.banner, "")
        assert command[2] == "--format=csv,noheader,nounits"
        what, _, fields = command[1].removeprefix("--query-").partition("=")
        rows = self.gpus if what == "gpu" else self.apps
        return self._table(command, rows, fields.split(","))

    def _table(self, command, rows, fields):
        unknown = [name for name in fields if rows and name not in rows[0]]
        if unknown:
            message = f'Field "{unknown[0]}" is not a valid field to query.\n'
            return subprocess.CompletedProcess(command, 2, message, "")
        lines = [", ".join(row[name] for name in fields) for row in rows]
        return subprocess.CompletedProcess(command, 0, "\n".join(lines) + "\n", "")


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    """A fake nvidia-smi without GPUs, on a machine without driver files."""
    fake = Smi()
    monkeypatch.setattr(nvidia.subprocess, "run", fake.run)
    monkeypatch.setattr(nvidia, "_PROC", tmp_path / "proc-driver-nvidia")
    monkeypatch.setattr(nvidia, "_PCI", tmp_path / "pci")
    monkeypatch.setattr(gpus, "_CONTROL", tmp_path / "nvidiactl")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.fixture
def add_gpu(nvidia_smi):
    def add(**other):
        number = str(len(nvidia_smi.gpus))
        nvidia_smi.gpus.append({**A100, "index": number, **other})

    return add


@pytest.fixture
def torch_sees(monkeypatch):
    """Make torch report a number of GPUs and a CUDA version (None: a CPU-only build)."""

    def give(count, cuda="13.0", arch_list=("sm_80", "sm_90"), capability=(8, 0)):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(torch, "__version__", f"2.15.0+{'cu130' if cuda else 'cpu'}")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(arch_list))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)

    give(0)
    return give


@pytest.fixture
def published(monkeypatch):
    """The published builds of torch: CUDA 12.6, 13.0 and 13.2."""
    new = {75, 80, 86, 90, 100, 120}
    builds = {
        "12.6": {"x86_64": {50, 60, 70, 75, 80, 86, 90}, "aarch64": {80, 90}},
        "13.0": {"x86_64": new, "aarch64": {80, 90, 100, 110, 120}},
        "13.2": {"x86_64": new, "aarch64": {80, 90, 100, 110, 120}},
    }
    monkeypatch.setattr(torch.cuda, "PYTORCH_RELEASES_CODE_CC", builds, raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
