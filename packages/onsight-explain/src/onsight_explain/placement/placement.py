"""Where every tensor of a training loop is: the table, the verdict, and what to fix."""

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from onsight_explain.errors import PlacementError
from onsight_explain.placement.optimizers import Optimizers
from onsight_explain.placement.problems import Problem, misplaced, torch_build, unused
from onsight_explain.placement.show import grouped, table_text, verdict_of
from onsight_explain.placement.table import Row, Table


@dataclass(frozen=True)
class Placement:
    """The rows of all tensors found, the device where they should be, problems and notes."""

    rows: list[Row]
    device: str
    problems: list[Problem]
    notes: list[str]

    @property
    def verdict(self) -> str:
        """One line: where everything is, or what is wrong."""
        return verdict_of(self.rows, self.device, self.problems, self.notes)

    def check(self) -> "Placement":
        """Return the placement itself. Raises PlacementError if it has problems."""
        if self.problems:
            raise PlacementError("\n".join(map(str, self.problems)))
        return self

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON, with the rows of the printed table."""
        return {
            "device": self.device,
            "verdict": self.verdict,
            "problems": [asdict(problem) for problem in self.problems],
            "notes": list(self.notes),
            "rows": [group._asdict() for group in grouped(self.rows)],
        }

    def __str__(self) -> str:
        wrong = [f"  {problem.what}\n      {problem.fix}" for problem in self.problems]
        return "\n".join([table_text(self.rows), *wrong, self.verdict])


def placement(
    *,
    model: nn.Module | None = None,
    loss: Any = None,
    optimizer: Any = None,
    metrics: Any = None,
    batch: Any = None,
) -> Placement:
    """Where every tensor of a training loop is; call it after a step, when all of them exist.

    loss: a module, a partial or an object; optimizer: one or several; metrics: one or several
    objects with tensors, or a moving average; batch: tensors in any nesting. Nothing is computed
    or copied, and no device is waited for. Raises TypeError.
    """
    if all(part is None for part in (model, loss, optimizer, metrics, batch)):
        raise TypeError("placement needs a model, loss, optimizer, metrics or batch to look at")
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    table, optimizers = Table(), None if optimizer is None else Optimizers(optimizer)
    if model is not None:
        table.add_model(model)
    if optimizers:
        optimizers.enter(table, model)
    table.add_loss(loss)
    table.add_metrics(metrics, model)
    table.add_batch(batch)
    rows, home = [found.row for found in table.found], table.home()
    problems = [*misplaced(table.found, home, model is not None), *torch_build(rows)]
    notes = unused(rows)
    if optimizers and model is not None:
        more_problems, more_notes = optimizers.compare(model, loss)
        problems, notes = [*more_problems, *problems], [*more_notes, *notes]
    return Placement(rows, home, problems, notes)
