"""The flags of a run that are worth changing, one at a time."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.hardware.cores import usable_cores
from onsight.training.pictures.training_data import TrainingData

_BATCHES = (64, 256, 1024)
_LEAST_BATCHES = 8  # per epoch, or a batch is too large
_PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("bf16", "fp32", "fp16")}


@dataclass(frozen=True)
class FlagChange:
    """A field of the config with another value."""

    group: str
    value: Any

    @property
    def label(self) -> str:
        """As on a command line."""
        return f"--{self.group.replace('_', '-')} {self.value}"


def fields_of(changes: Iterable[FlagChange]) -> dict[str, Any]:
    """The config's fields with their other values."""
    return {one.group: one.value for one in changes}


def flag_changes(config: Config, data: TrainingData, net: nn.Module) -> list[FlagChange]:
    """The changes worth timing. config: with nothing left to choose; net: as this run builds it."""
    found: list[FlagChange] = []
    pictures = len(data.dataset.ids(TRAIN))
    for size in _BATCHES:
        if size >= 2 * config.batch_size and pictures >= _LEAST_BATCHES * size:
            found.append(FlagChange("batch_size", size))
    kind = data.device.type
    others = (one for one in _PRECISIONS.get(kind, ()) if one != config.precision)
    found += [FlagChange("precision", one) for one in others]
    if kind == "cpu":
        counts = sorted({1, usable_cores()} - {config.threads})
        found += [FlagChange("threads", count) for count in counts]
    if any(parameter.ndim == 4 for parameter in net.parameters()):
        is_plain = config.memory_format == "contiguous"
        found.append(FlagChange("memory_format", "channels_last" if is_plain else "contiguous"))
    if config.accumulate > 1:
        found.append(FlagChange("accumulate", 1))
    return found
