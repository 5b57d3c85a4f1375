"""Mistakes that leave a tensor on the wrong device, each with the line of code that fixes it."""

from collections.abc import Iterable
from dataclasses import dataclass

from onsight_explain.devices import available_devices, is_cpu_build_beside_gpu
from onsight_explain.placement.table import (
    BATCH,
    BUFFER,
    COPY,
    LOSS,
    METRIC,
    PARAMETER,
    STATE,
    Found,
    Row,
)
from onsight_explain.text import listed

BUILD = "torch build"

_WHY = {
    PARAMETER: "all parameters of a network belong on one device",
    BUFFER: "it was created or replaced after the model was moved",
    LOSS: "a loss has its own tensors, which do not move with the model",
    STATE: "the optimizer's state was created before the model was moved, or loaded elsewhere",
    METRIC: "a metric has its own tensors, which do not move with the model",
    COPY: "a copy stays on the device where it was made and does not follow the model",
    BATCH: ".to() returns a new tensor and leaves the old one where it is, so assign its result",
}


@dataclass(frozen=True)
class Problem:
    """What is wrong, in a sentence, and the line of code that fixes it."""

    name: str
    kind: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}. Write: {self.fix}"


def misplaced(found: Iterable[Found], home: str, has_model: bool) -> list[Problem]:
    """One problem for all misplaced tensors that are on one device and fixed by one line."""
    together: dict[tuple[str, ...], list[Found]] = {}
    for one in found:
        if one.is_misplaced(home):
            row = one.row
            fix = _fix(one, home) if has_model else one.fix
            key = (row.kind, row.device, one.home or home, fix)
            together.setdefault(key, []).append(one)
    return [_problem(group, home, fix, has_model) for (_, _, home, fix), group in together.items()]


def _fix(one: Found, home: str) -> str:
    """The line that fixes it; if all but the model is on an accelerator, it moves the model."""
    is_left = home == "cpu" and not one.holder and one.row.kind in (LOSS, METRIC, COPY, BATCH)
    return "model = model.to(device)" if is_left else one.fix


def _problem(group: list[Found], home: str, fix: str, has_model: bool) -> Problem:
    row, holder = group[0].row, group[0].holder
    name = listed([one.row.name for one in group], 3)
    where = f"{name} {'is' if len(group) == 1 else 'are'} on {row.device}"
    if row.kind == STATE:
        other = "its parameter is" if len(group) == 1 else "their parameters are"
    else:
        other = "the model is" if has_model else "the rest is"
        other = "the others are" if row.kind == PARAMETER else other
    return Problem(name, row.kind, f"{where}, but {other} on {home}: {_why(row, holder, fix)}", fix)


def _why(row: Row, holder: str, fix: str) -> str:
    if holder and "register_buffer" in fix:
        return f"it is a plain attribute of {holder}, not a buffer, so .to() does not move it"
    if holder:
        return f"{holder} keeps it in a plain attribute, which .to() does not move"
    if fix.startswith("model =") and row.kind not in (PARAMETER, BUFFER):
        return "the model was not moved"
    return _WHY[row.kind]


def torch_build(rows: list[Row]) -> list[Problem]:
    """A problem if everything is on the CPU because torch was built without CUDA."""
    if not _is_all_on_cpu(rows) or not is_cpu_build_beside_gpu():
        return []
    what = (
        "everything is on cpu: there is an NVIDIA driver, but this torch is a CPU-only build and "
        "sees no GPU"
    )
    fix = "pip install --force-reinstall torch  # built as https://pytorch.org/get-started says"
    return [Problem("torch", BUILD, what, fix)]


def unused(rows: list[Row]) -> list[str]:
    """A note if there is an accelerator that nothing uses."""
    best = available_devices()[0] if _is_all_on_cpu(rows) else "cpu"
    return [] if best == "cpu" else [f"torch sees {best}, which nothing here uses"]


def _is_all_on_cpu(rows: list[Row]) -> bool:
    return bool(rows) and all(row.device == "cpu" for row in rows)
