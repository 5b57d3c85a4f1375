"""The mistakes that leave a tensor in the wrong place, each with the line of code to fix it."""

from collections.abc import Iterable
from dataclasses import dataclass

from onsight.hardware.devices import available_devices, is_cpu_build_beside_gpu
from onsight.hardware.placement.table import (
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
from onsight.words import listed

BUILD = "torch build"

_WHY = {
    PARAMETER: "a network works on one device",
    BUFFER: "it was made or replaced after the model was moved",
    LOSS: "a loss keeps tensors of its own, which do not move with the model",
    STATE: "the optimizer's state was made before the model was moved, or loaded without it",
    METRIC: "a metric keeps tensors of its own, which do not move with the model",
    COPY: "a copy is made on the device of the moment, and does not follow the model",
    BATCH: ".to() returns a new tensor and leaves the old one where it is, so keep its result",
}


@dataclass(frozen=True)
class Problem:
    """What is wrong, in a sentence, and the line of code to write."""

    name: str
    kind: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}. Write: {self.fix}"


def misplaced(found: Iterable[Found], home: str, has_model: bool) -> list[Problem]:
    """A problem for those tensors that lie wrong together and are fixed by one line."""
    together: dict[tuple[str, ...], list[Found]] = {}
    for one in found:
        if one.is_misplaced(home):
            row = one.row
            fix = _fix(one, home) if has_model else one.fix
            key = (row.kind, row.device, one.home or home, fix)
            together.setdefault(key, []).append(one)
    return [_problem(group, home, fix, has_model) for (_, _, home, fix), group in together.items()]


def _fix(one: Found, home: str) -> str:
    """Where all but the model lies on an accelerator, it is the model that was left behind."""
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
        return f"a tensor as a plain attribute of {holder} is no buffer, so .to() passes it by"
    if holder:
        return f"{holder} keeps it in a plain attribute, which .to() passes by"
    if fix.startswith("model =") and row.kind not in (PARAMETER, BUFFER):
        return "the model was not moved"
    return _WHY[row.kind]


def torch_build(rows: list[Row]) -> list[Problem]:
    """The GPU that stays hidden from a torch built without it, where everything is on the CPU."""
    if not _is_all_on_cpu(rows) or not is_cpu_build_beside_gpu():
        return []
    what = (
        "everything is on cpu: an NVIDIA driver is there, but this torch is a CPU-only build and "
        "sees no GPU"
    )
    fix = "pip install --force-reinstall torch  # built as https://pytorch.org/get-started says"
    return [Problem("torch", BUILD, what, fix)]


def unused(rows: list[Row]) -> list[str]:
    """A note on the accelerator that nothing uses."""
    best = available_devices()[0] if _is_all_on_cpu(rows) else "cpu"
    return [] if best == "cpu" else [f"torch sees {best}, which nothing here uses"]


def _is_all_on_cpu(rows: list[Row]) -> bool:
    return bool(rows) and all(row.device == "cpu" for row in rows)
