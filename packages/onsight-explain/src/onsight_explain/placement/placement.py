"""Report where every tensor of a training loop is, what is wrong with that, and how to fix it."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from torch import nn

from onsight_explain.errors import PlacementError
from onsight_explain.placement.problems import (
    OptimizerTensors,
    PlacementProblem,
    find_cpu_build,
    find_misplaced,
    note_unused_accelerator,
)
from onsight_explain.placement.tensors import (
    ATTRIBUTE,
    BATCH,
    BUFFER,
    COPY,
    LOSS,
    METRIC,
    PARAMETER,
    STATE,
    TensorRow,
    TensorTable,
)
from onsight_explain.text import plural

_NOUNS = {  # in the order of the printed table
    PARAMETER: "parameter",
    BUFFER: "buffer",
    ATTRIBUTE: "plain tensor",
    LOSS: "loss tensor",
    STATE: "optimizer tensor",
    METRIC: "metric tensor",
    COPY: "averaged tensor",
    BATCH: "batch tensor",
}
_ALIGNMENT = "<<<>>>"  # of the table's columns: text to the left, numbers to the right


class TensorGroup(NamedTuple):
    """All tensors of one kind and dtype on one device: a line of the printed table."""

    kind: str
    device: str
    dtype: str
    tensors: int
    numbers: int  # that they contain in total
    bytes: int


@dataclass(frozen=True)
class Placement:
    """Where every tensor of a training loop is; `print` shows it as a table.

    Attributes:
        rows: Each tensor with its name and device.
        device: The device where they should be.
        problems: The tensors that are elsewhere, each with the line that fixes it.
        notes: What is worth knowing, but not wrong.
    """

    rows: list[TensorRow]
    device: str
    problems: list[PlacementProblem]
    notes: list[str]

    @property
    def verdict(self) -> str:
        """One line: where everything is, or the first problem and how many more there are."""
        if self.problems:
            count = len(self.problems) - 1
            more = f" (and {plural(count, 'more problem')})" if count else ""
            summary = f"{self.problems[0].what}{more}"
        else:
            summary = _summarize(self.rows, self.device)
        return "; note: ".join([summary, *self.notes])

    def check(self) -> "Placement":
        """Return the placement itself.

        Raises:
            PlacementError: It has problems.
        """
        if self.problems:
            raise PlacementError("\n".join(map(str, self.problems)))
        return self

    def groups(self) -> list[TensorGroup]:
        """Group the rows by kind, device and dtype, in the order of the kinds."""
        groups: dict[tuple[str, str, str], list[TensorRow]] = {}
        for row in sorted(self.rows, key=lambda row: list(_NOUNS).index(row.kind)):
            groups.setdefault((row.kind, row.device, row.dtype), []).append(row)
        return [
            TensorGroup(
                *key, len(rows), sum(row.numbers for row in rows), sum(row.bytes for row in rows)
            )
            for key, rows in groups.items()
        ]

    def facts(self) -> dict[str, Any]:
        """Return plain values for JSON, with the rows of the printed table."""
        return {
            "device": self.device,
            "verdict": self.verdict,
            "problems": [asdict(problem) for problem in self.problems],
            "notes": list(self.notes),
            "rows": [group._asdict() for group in self.groups()],
        }

    def __str__(self) -> str:
        problems = [f"  {problem.what}\n      {problem.fix}" for problem in self.problems]
        return "\n".join([_format_table(self.groups()), *problems, self.verdict])


def placement(
    *,
    model: nn.Module | None = None,
    loss: Any = None,
    optimizer: Any = None,
    metrics: Any = None,
    batch: Any = None,
) -> Placement:
    """Report where every tensor of a training loop is.

    Call it after a step, when all of them exist. Nothing is computed or copied, and no device is
    waited for.

    Args:
        model: The network.
        loss: A module, a `functools.partial` or any object with tensors.
        optimizer: One, or several in a list or dict.
        metrics: One or several objects with tensors, or a moving average of the model.
        batch: Tensors in any nesting of dicts, lists and tuples.

    Raises:
        TypeError: If nothing is given, or the model or the optimizer is something else.
    """
    if all(part is None for part in (model, loss, optimizer, metrics, batch)):
        raise TypeError("placement needs a model, loss, optimizer, metrics or batch")
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    table, optimizers = TensorTable(), None if optimizer is None else OptimizerTensors(optimizer)
    if model is not None:
        table.add_model(model)
    if optimizers:
        optimizers.add_to(table, model)
    table.add_loss(loss)
    table.add_metrics(metrics, model)
    table.add_batch(batch)
    rows, home = [entry.row for entry in table.entries], table.home()
    problems = [*find_misplaced(table.entries, home, model is not None), *find_cpu_build(rows)]
    notes = note_unused_accelerator(rows)
    if optimizers and model is not None:
        more_problems, more_notes = optimizers.compare_with(model, loss)
        problems, notes = [*more_problems, *problems], [*more_notes, *notes]
    return Placement(rows, home, problems, notes)


def _format_table(groups: list[TensorGroup]) -> str:
    """Format the groups as lines with aligned columns."""
    cells = [TensorGroup._fields, *(tuple(map(_format_cell, group)) for group in groups)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    columns = zip(_ALIGNMENT, widths, strict=True)
    template = "  ".join(f"{{:{alignment}{width}}}" for alignment, width in columns)
    return "\n".join(template.format(*row) for row in cells)


def _format_cell(value: object) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _summarize(rows: list[TensorRow], home: str) -> str:
    """Return the verdict on a placement without problems."""
    kinds: Counter[str] = Counter(row.kind for row in rows)
    kinds[PARAMETER] = sum(row.numbers for row in rows if row.kind == PARAMETER)
    always = {PARAMETER, BUFFER} if kinds[PARAMETER] else set()
    counts = [
        plural(kinds[kind], noun) for kind, noun in _NOUNS.items() if kinds[kind] or kind in always
    ]
    away = Counter((row.kind, row.device) for row in rows if row.device != home)
    but = [f"{plural(count, _NOUNS[kind])} on {device}" for (kind, device), count in away.items()]
    rest = f" but {' and '.join(but)}, where torch accepts them" if but else ""
    return f"everything is on {home}{rest}: {', '.join(counts) or 'no tensors'}"
