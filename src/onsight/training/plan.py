"""The plan of a run: each choice with its reason, told on the console and kept in plan.json."""

import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.dataset import choose_packed_size, make_format
from onsight.data.loader import BatchSource, Pictures
from onsight.data.pack import is_packed
from onsight.data.packing import Job
from onsight.data.sources.source import Source
from onsight.errors import ConfigError
from onsight.files import write_json
from onsight.hardware.cores import usable_cores
from onsight.hardware.devices import free_memory_bytes
from onsight.report.words import data_size
from onsight.training.step.optim import SGD_NAMES

_RESIDENT_SHARE = 0.4  # of the free memory of a device or the machine, at most, for pictures
_DISK_SHARE = 0.9  # of the room on the cache's disk, at most, for a pack

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
    if config.optimizer in SGD_NAMES:
        rate = 0.005 if config.pretrained else 0.05
    elif config.pretrained:
        rate = 3e-4
    else:
        rate = 0.01 if config.model == "compact" else 1e-3
    start = "published weights" if config.pretrained else "random weights"
    return Choice(rate, f"usual for {config.optimizer} on {config.model} from {start}")


def choose_streaming(
    config: Config, source: Source, size: tuple[int, int], cache: Path | None
) -> Choice[bool]:
    """Whether pictures are decoded for every batch, because a pack of them has no room.

    size: (height, width) of the model's input.
    """
    if config.residency != "auto":
        return Choice(config.residency == "stream", "as asked")
    packed = choose_packed_size(source, size, config).value
    job = Job(source, make_format(config, size, packed))
    if is_packed(job, cache):
        return Choice(False, "the pictures lie decoded in the cache")
    needed = len(source.index) * packed[0] * packed[1] * (job.target.channels or 3)
    disk = cache or Path(tempfile.gettempdir())
    free = shutil.disk_usage(_nearest_folder(disk)).free
    fits = needed <= _DISK_SHARE * free
    why = f"decoded they take {data_size(needed)}, and {disk} has {data_size(free)} left"
    return Choice(not fits, why, needed)


def choose_residency(
    pictures: BatchSource, device: torch.device, asked: str = "auto", ranks: int = 1
) -> Choice[str]:
    """Where batches come from: the device, a copy in memory, the memory map or the source.

    ranks: of the run, which share one map. Raises ConfigError.
    """
    if not isinstance(pictures, Pictures):
        return Choice("stream", "each batch is decoded from DATA")
    if asked == "device" and device.type == "cpu":
        raise ConfigError(
            "--residency device needs an accelerator; on the CPU use auto, memory, map or stream"
        )
    size = pictures.nbytes
    if asked != "auto":
        value, why = asked, "as asked"
    elif device.type != "cpu" and _fits(size, device):
        value, why = "device", f"all pictures fit {device} with room to spare"
    elif ranks > 1:
        value, why = "map", f"{ranks} ranks share it"
    elif _fits(size, torch.device("cpu")):
        value, why = "memory", "all pictures fit with room to spare"
    else:
        value, why = "map", "the pictures are too large to copy to memory"
    return Choice(value, f"{why}; {data_size(size)}", size)


def _fits(size: int, device: torch.device) -> bool:
    return size < _RESIDENT_SHARE * free_memory_bytes(device)


def _nearest_folder(path: Path) -> Path:
    """The folder itself, or the nearest above it that is there already."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def save_plan(plan: Plan, path: Path) -> None:
    """Write the plan, values as text where JSON has no word for them."""
    choices = {name: asdict(choice) for name, choice in plan.items()}
    for choice in choices.values():
        if isinstance(choice["value"], torch.device):
            choice["value"] = str(choice["value"])
    write_json(path, choices)
