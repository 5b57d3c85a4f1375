"""Checkpoints: the complete state of a run in one checksummed safetensors file, without pickle.

Tensors are stored under `model.`, `average.`, `optimizer.N.` and `group.N.`; the rest is JSON. The
learning rate and all random numbers are functions of the step, so they are not stored.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from onsight.step.step import Step
from onsight.step.update import MovingAverage
from onsight.tensorfile import (
    DamagedFile,
    put_under,
    read_tensors,
    take_under,
    write_tensors,
)
from onsight.training.progress import Progress, check_progress

VERSION = 3


class OtherCheckpoint(DamagedFile):
    """An intact checkpoint of another run or another version of Onsight."""


_JSON_TYPES = (bool, int, float, str, list, tuple, type(None))


@dataclass(frozen=True)
class Snapshot:
    """The content of a checkpoint: copies of tensors on the CPU, and JSON values."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def write(self, path: Path) -> None:
        """Write the file atomically. Raises DiskError."""
        write_tensors(path, self.tensors, self.facts)


@dataclass(frozen=True)
class SavedRun:
    """The part of a checkpoint that is not the state of a step."""

    data_key: str
    elapsed_seconds: float  # of the run
    decisions: Mapping[str, Any]
    progress: Progress


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as read from its file."""

    path: Path
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    run: SavedRun

    def restore(self, step: Step, average: MovingAverage | None) -> None:
        """Restore the state of a step and of the moving average.

        Raises:
            OtherCheckpoint: The state does not fit; part of it may have been restored.
        """
        with other_checkpoint(self.path):
            step.model.load_state_dict(take_under("model.", self.tensors))
            if average:
                average.model.load_state_dict(take_under("average.", self.tensors))
            _restore_optimizer(step.optimizer, self.tensors, self.facts["optimizer"])
            step.scaler.load_state_dict(self.facts["scaler"])


def snapshot(step: Step, average: MovingAverage | None, saved: SavedRun) -> Snapshot:
    """Copy the state of a step, the moving average and the rest of a run."""
    tensors = put_under("model.", _copied(step.model.state_dict()))
    if average:
        tensors |= put_under("average.", _copied(average.model.state_dict()))
    optimizer_tensors, optimizer_facts = _flatten_optimizer(step.optimizer)
    tensors |= optimizer_tensors
    facts = {
        "version": VERSION,
        "optimizer": optimizer_facts,
        "scaler": step.scaler.state_dict(),
        "data_key": saved.data_key,
        "elapsed_seconds": saved.elapsed_seconds,
        "decisions": dict(saved.decisions),
        "progress": asdict(saved.progress),
    }
    return Snapshot(tensors, facts)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        OtherCheckpoint: The file is not a checkpoint of this version.
        DamagedFile: The file is missing or damaged.
    """
    tensors, facts = read_tensors(path)
    if not isinstance(facts, dict) or facts.get("version") != VERSION:
        raise OtherCheckpoint(f"{path} was written by another version of Onsight")
    with other_checkpoint(path):
        progress, decisions = facts["progress"], dict(facts["decisions"])
        check_progress(progress)
        elapsed = float(facts["elapsed_seconds"])
        run = SavedRun(str(facts["data_key"]), elapsed, decisions, Progress(**progress))
    return Checkpoint(path, tensors, facts, run)


@contextmanager
def other_checkpoint(path: Path) -> Iterator[None]:
    """Raise OtherCheckpoint if the content of an intact file is missing or unsuitable."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise OtherCheckpoint(f"{path} is no checkpoint of this run: {reason[0]}") from error


def snapshot_weights(model: nn.Module) -> Snapshot:
    """Copy only the weights of a model."""
    return Snapshot(_copied(model.state_dict()), {"version": VERSION})


def save_weights(path: Path, model: nn.Module) -> None:
    """Write only the weights of a model, atomically."""
    snapshot_weights(model).write(path)


def load_weights(path: Path, model: nn.Module) -> None:
    """Load weights written by save_weights into a model."""
    tensors, _ = read_tensors(path)
    model.load_state_dict(tensors)


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    # Copies, because safetensors refuses tensors that share memory, such as tied weights.
    return {name: _copy(tensor) for name, tensor in tensors.items()}


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _flatten_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of an optimizer's state by name, and the rest as JSON values."""
    state = optimizer.state_dict()
    tensors, values = {}, {}
    for number, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{number}.{name}"] = _copy(value)
            else:
                values[f"{number}.{name}"] = value
    for number, group in enumerate(state["param_groups"]):
        for name, value in group.items():
            if isinstance(value, Tensor):  # such as the step counter of some optimizers
                tensors[f"group.{number}.{name}"] = _copy(value)
    # Values that JSON cannot express, such as a dtype, are settings, which the config determines.
    groups = [
        {name: value for name, value in group.items() if isinstance(value, _JSON_TYPES)}
        for group in state["param_groups"]
    ]
    return tensors, {"groups": groups, "values": values}


def _restore_optimizer(
    optimizer: Optimizer, tensors: dict[str, Tensor], facts: dict[str, Any]
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**take_under("optimizer.", tensors), **facts["values"]}.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    defaults = optimizer.state_dict()["param_groups"]
    groups = [group | saved for group, saved in zip(defaults, facts["groups"], strict=True)]
    for key, value in take_under("group.", tensors).items():
        number, _, name = key.partition(".")
        groups[int(number)][name] = value
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    # Files do not store the memory layout, and reductions over another layout differ in their bits.
    for parameter, entries in optimizer.state.items():
        for name, value in entries.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                entries[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
