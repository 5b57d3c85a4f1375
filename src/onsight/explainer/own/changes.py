"""The flags of a run that are worth changing, one at a time."""

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
    """Fields of the config with other values."""

    fields: dict[str, Any]

    @property
    def flags(self) -> str:
        """As on a command line."""
        pairs = (f"--{name.replace('_', '-')} {value}" for name, value in self.fields.items())
        return " ".join(pairs)

    def with_(self, other: "FlagChange") -> "FlagChange":
        """Both together."""
        return FlagChange(self.fields | other.fields)


def flag_changes(config: Config, data: TrainingData, net: nn.Module) -> list[FlagChange]:
    """The changes worth timing. config: with nothing left to choose; net: as this run builds it."""
    found: list[dict[str, Any]] = []
    pictures = len(data.dataset.ids(TRAIN))
    for size in _BATCHES:
        if size >= 2 * config.batch_size and pictures >= _LEAST_BATCHES * size:
            found.append({"batch_size": size})
    kind = data.device.type
    others = (one for one in _PRECISIONS.get(kind, ()) if one != config.precision)
    found += [{"precision": one} for one in others]
    if kind == "cpu":
        counts = sorted({1, usable_cores()} - {config.threads})
        found += [{"threads": count} for count in counts]
    if any(parameter.ndim == 4 for parameter in net.parameters()):
        is_plain = config.memory_format == "contiguous"
        found.append({"memory_format": "channels_last" if is_plain else "contiguous"})
    if config.accumulate > 1:
        found.append({"accumulate": 1})
    return [FlagChange(fields) for fields in found]
