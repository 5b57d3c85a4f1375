"""What is worth changing about a run, one thing at a time: its flags, and what it is started in."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.training.images.training_data import TrainingData
from onsight.words import listed
from onsight_explain.threads import thread_variables_set_by_user, usable_cores

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


@dataclass(frozen=True)
class Unset:
    """Variables of OpenMP's threads taken out of the environment; torch has read them at its start.

    values: as they are set.
    """

    names: tuple[str, ...]
    values: tuple[str, ...]
    group: str = "environment"

    @property
    def label(self) -> str:
        """As something to do before the command."""
        return f"{listed(self.names)} unset"

    @property
    def settings(self) -> str:
        """As they are set now."""
        return listed(
            [f"{name}={value}" for name, value in zip(self.names, self.values, strict=True)]
        )


RunChange = FlagChange | Unset


def fields_of(changes: Iterable[RunChange]) -> dict[str, Any]:
    """The config's fields with their other values."""
    return {one.group: one.value for one in changes if isinstance(one, FlagChange)}


def unset_among(changes: Iterable[RunChange]) -> Unset | None:
    """The variables that these changes take out of the environment, if they do."""
    return next((one for one in changes if isinstance(one, Unset)), None)


def settings_of_threads() -> Unset | None:
    """The variables that this process was started with, to be taken away, if there are any."""
    found = thread_variables_set_by_user(os.environ)
    return Unset(tuple(found), tuple(found.values())) if found else None


def flag_changes(config: Config, data: TrainingData, net: nn.Module) -> list[FlagChange]:
    """The changes worth timing. config: with nothing left to choose; net: as this run builds it."""
    found: list[FlagChange] = []
    images = len(data.dataset.ids(TRAIN))
    for size in _BATCHES:
        if size >= 2 * config.batch_size and images >= _LEAST_BATCHES * size:
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
