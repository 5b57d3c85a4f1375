"""Whether two run folders hold the same training, bit for bit, whatever time it took."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onsight.tensorfile import DamagedFile, read_tensors

_TIMES = ("seconds", "per_second", "wait_share")  # in the names of what differs in any two runs


@dataclass(frozen=True)
class Compared:
    """What was compared, as (what, how many), and in words what differs."""

    counts: dict[str, int]
    differences: list[str]


def compare_folders(one: Path, other: Path) -> Compared:
    """Compare weights, checkpoint, metrics and predictions of two finished runs."""
    found = Compared({}, [])
    for name, what in (
        ("model.safetensors", "tensors of the model"),
        ("checkpoints/last.safetensors", "tensors of the checkpoint, optimizer included"),
    ):
        _compare_tensors(one / name, other / name, what, found)
    for name, what in (("metrics.jsonl", "epochs"), ("predictions.csv", "predictions")):
        _compare_lines(one / name, other / name, what, found)
    return found


def without_times(value: Any) -> Any:
    """A value of JSON without the entries that say how long something took."""
    if isinstance(value, dict):
        kept = {name: one for name, one in value.items() if not name.endswith(_TIMES)}
        return {name: without_times(one) for name, one in kept.items()}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def _compare_tensors(one: Path, other: Path, what: str, found: Compared) -> None:
    try:
        first, facts = read_tensors(one)
        second, others = read_tensors(other)
    except DamagedFile as error:
        found.differences.append(str(error))
        return
    found.counts[what] = len(first)
    names = sorted(first.keys() | second.keys())
    unequal = [name for name in names if not _is_same(first.get(name), second.get(name))]
    if unequal:
        found.differences.append(
            f"{one.name}: {len(unequal)} of {len(names)} tensors differ, first {unequal[0]}"
        )
    for key in ("progress", "optimizer", "scaler", "temperature"):
        if without_times(facts.get(key)) != without_times(others.get(key)):
            found.differences.append(f"{one.name}: {key} differs")


def _is_same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    bits = (tensor.contiguous().flatten().view(torch.uint8) for tensor in (one, other))
    return torch.equal(*bits)


def _compare_lines(one: Path, other: Path, what: str, found: Compared) -> None:
    try:
        first, second = (_lines(path) for path in (one, other))
    except OSError as error:
        found.differences.append(f"cannot read {error.filename}: {error.strerror}")
        return
    found.counts[what] = len(first)
    if len(first) != len(second):
        found.differences.append(f"{one.name}: {len(first)} and {len(second)} {what}")
        return
    unequal = [number for number, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    if unequal:
        found.differences.append(
            f"{one.name}: {len(unequal)} of {len(first)} {what} differ, first number "
            f"{unequal[0] + 1}"
        )


def _lines(path: Path) -> list[Any]:
    """The rows of a file of JSON lines, without times, or of a table, without its header."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".jsonl":
        return [without_times(json.loads(line)) for line in lines]
    return lines[1:]
