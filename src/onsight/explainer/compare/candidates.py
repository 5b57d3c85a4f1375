"""What is compared: devices, or thread counts and precisions if there is only the CPU."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from onsight.config import Config
from onsight.errors import ConfigError
from onsight.hardware.devices import choose_device
from onsight.training.plan import choose_precision, choose_threads
from onsight.words import plural
from onsight_explain.devices import available_devices


@dataclass(frozen=True)
class Candidate:
    """A way to compute a run's steps; a tentative one is left out if it does not work."""

    name: str
    device: torch.device
    threads: int
    precision: str
    tentative: bool = False


def choose_candidates(devices: Sequence[str], config: Config) -> list[Candidate]:
    """The candidates for these devices; without any, for the CPU and every accelerator.

    Raises DeviceError for a device that is not there, ConfigError for one named twice.
    """
    chosen = [choose_device(name).value for name in devices or _usual_devices(config.device)]
    for device in chosen:
        if chosen.count(device) > 1:
            raise ConfigError(f"--compare names {device} twice; name each device once")
    threads = choose_threads(config.threads).value
    if all(device.type == "cpu" for device in chosen):
        return _cpu_candidates(config, threads)
    return [
        Candidate(str(device), device, threads, choose_precision(config.precision, device).value)
        for device in chosen
    ]


def _usual_devices(asked: str) -> list[str]:
    """The CPU, then the config's devices, or all there are."""
    names = available_devices() if asked in ("auto", "all") else asked.split(",")
    return ["cpu", *(name for name in names if name != "cpu")]


def _cpu_candidates(config: Config, threads: int) -> list[Candidate]:
    """One thread and all threads, each in every precision that the config leaves open."""
    cpu = torch.device("cpu")
    is_open = config.precision == "auto"
    first = choose_precision(config.precision, cpu).value
    candidates = []
    for precision in (first, "bf16") if is_open else (first,):
        for count in sorted({1, threads}):
            name = plural(count, "thread") + (f" {precision}" if is_open else "")
            candidates.append(Candidate(name, cpu, count, precision, precision != first))
    return candidates
