"""How a run could compute its step here, in stages: the options worth measuring."""

import shutil
from collections.abc import Callable

import torch
from torch import nn

from onsight.config import Config
from onsight.hardware.cores import usable_cores
from onsight.training.autotune.probe import ComputeOptions
from onsight.training.plan import choose_precision, choose_threads
from onsight.training.prepare import PreparedRun

COMPUTE_FIELDS = (
    "precision",
    "memory_format",
    "threads",
    "compile",
    "accumulate",
)

_COMPILE_WORTH_SECONDS = 3600  # to try it takes up to a minute, and often wins nothing

Stage = Callable[[ComputeOptions], list[ComputeOptions]]


def default_options(config: Config, device: torch.device, threads: int) -> ComputeOptions:
    """What is taken without measuring."""
    return {
        "threads": threads,
        "precision": choose_precision(config.precision, device).value,
        "memory_format": config.memory_format,
        "compile": "on" if config.compile == "on" else "off",
        "accumulate": config.accumulate,
    }


def open_stages(config: Config, prepared: PreparedRun, expected_seconds: float) -> list[Stage]:
    """What the config leaves open on this device; the default comes first. Empty: nothing."""
    device = prepared.device
    threads = _thread_counts(config, device)
    plain = default_options(config, device, threads[0])
    precisions = _precisions(config, device)
    stages: list[Stage] = []
    if len(threads) * len(precisions) > 1:
        grid = [plain | {"precision": p, "threads": t} for p in precisions for t in threads]
        stages.append(lambda _: [plain, *(options for options in grid if options != plain)])
    if config.memory_format == "auto" and _convolves(prepared.draft(config)):
        stages.append(lambda best: _with(best or plain, "memory_format", "contiguous"))
    if config.compile == "auto" and expected_seconds > _COMPILE_WORTH_SECONDS and _compiles(device):
        stages.append(lambda best: _with(best or plain, "compile", "on"))
    return stages


def _convolves(net: nn.Module) -> bool:
    """Whether the memory format may matter: a weight has four axes."""
    return any(parameter.ndim == 4 for parameter in net.parameters())


def _with(options: ComputeOptions, name: str, value: str) -> list[ComputeOptions]:
    return [options, options | {name: value}]


def _thread_counts(config: Config, device: torch.device) -> list[int]:
    """All cores, then 1, 2, 4 ... below."""
    if config.threads or device.type != "cpu":
        return [choose_threads(config.threads).value]
    cores = usable_cores()
    return [cores, *(1 << bit for bit in range(cores.bit_length()) if 1 << bit < cores)]


def _precisions(config: Config, device: torch.device) -> list[str]:
    plain = choose_precision(config.precision, device).value
    others = {"cpu": ["bf16"], "cuda": ["fp32", "fp16"]}.get(device.type, [])
    return [plain, *(p for p in others if config.precision == "auto" and p != plain)]


def _compiles(device: torch.device) -> bool:
    """Whether torch.compile has what it needs: a C++ compiler, or CUDA's Triton."""
    return device.type == "cuda" or any(shutil.which(name) for name in ("c++", "g++", "clang++"))
