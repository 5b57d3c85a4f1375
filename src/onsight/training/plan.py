"""The plan of a run: each choice with its reason, told on the console and kept in plan.json."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.loader import Pictures
from onsight.errors import ConfigError
from onsight.files import write_json
from onsight.hardware.cores import usable_cores
from onsight.hardware.devices import free_memory_bytes
from onsight.report.words import data_size

_RESIDENT_SHARE = 0.4  # of a device's free memory, at most, for pictures

Plan = dict[str, Choice[Any]]


def choose_threads(asked: int, local_ranks: int = 1) -> Choice[int]:
    """Threads of a rank, for decoding and for computing on the CPU."""
    if asked:
        return Choice(asked, "as asked")
    if local_ranks > 1:
        share = max(1, usable_cores() // local_ranks)
        return Choice(share, f"this rank's share of the {usable_cores()} cores")
    return Choice(usable_cores(), "every core that this process may use")


def choose_precision(asked: str, device: torch.device) -> Choice[str]:
    """The arithmetic of forward and backward. Raises ConfigError for fp16 without a GPU."""
    if asked == "fp16" and device.type == "cpu":
        raise ConfigError("--precision fp16 needs a GPU; on the CPU use fp32 or bf16")
    if asked != "auto":
        return Choice(asked, "as asked")
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return Choice("bf16", "this GPU computes it natively")
    return Choice("fp32", f"exact everywhere; bf16 is not assumed to pay on {device.type}")


def choose_learning_rate(config: Config) -> Choice[float]:
    """The highest learning rate: what usually works for this optimizer and model."""
    if config.learning_rate:
        return Choice(config.learning_rate, "as asked")
    if config.optimizer == "sgd":
        rate = 0.005 if config.pretrained else 0.05
    elif config.pretrained:
        rate = 3e-4
    else:
        rate = 0.01 if config.model == "compact" else 1e-3
    start = "published weights" if config.pretrained else "random weights"
    return Choice(rate, f"usual for {config.optimizer} on {config.model} from {start}")


def choose_residency(pictures: Pictures, device: torch.device) -> Choice[str]:
    """Where batches are gathered from: the device itself, or the memory map."""
    if device.type == "cpu":
        value, why = "memory map", "the CPU reads it in place"
    elif pictures.nbytes < _RESIDENT_SHARE * free_memory_bytes(device):
        value, why = "device", f"all pictures fit {device} with room to spare"
    else:
        value, why = "memory map", f"the pictures are too large to stay on {device}"
    return Choice(value, f"{why}; {data_size(pictures.nbytes)}", pictures.nbytes)


def save_plan(plan: Plan, path: Path) -> None:
    """Write the plan, values as text where JSON has no word for them."""
    choices = {name: asdict(choice) for name, choice in plan.items()}
    for choice in choices.values():
        if isinstance(choice["value"], torch.device):
            choice["value"] = str(choice["value"])
    write_json(path, choices)
