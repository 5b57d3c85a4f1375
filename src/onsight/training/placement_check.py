"""Checks after a run's first step where every tensor really was, and keeps placement.json."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from onsight.errors import PlacementError
from onsight.files import write_json
from onsight.report.console import Reporter
from onsight.step.step import Step
from onsight.step.update import MovingAverage
from onsight.training.run_folder import RunFolder
from onsight_explain.devices import is_out_of_memory
from onsight_explain.placement.placement import Placement, placement
from onsight_explain.placement.problems import BUILD, PlacementProblem
from onsight_explain.placement.tensors import ATTRIBUTE

PLACEMENT = "placement.json"

# A step that succeeded has shown that these do no harm: they are reported, but stop nothing.
_ONLY_REPORTED = {ATTRIBUTE, BUILD}
_OF_DEVICES = ("device", "weight type")  # torch's errors about two devices have one of them


class PlacementCheck:
    """Checks where every rank has what a step needs, once: at the first update of this process."""

    def __init__(self, folder: RunFolder, reporter: Reporter) -> None:
        self.folder = folder
        self.reporter = reporter

    @contextmanager
    def explaining(
        self, step: Step, average: MovingAverage | None, batch: tuple[Tensor, Tensor]
    ) -> Iterator[None]:
        """Raise PlacementError if the step fails because a tensor is on the wrong device."""
        try:
            yield
        except RuntimeError as error:
            _explain(error, _find_placement(step, average, batch))
            raise

    def check(
        self, step: Step, average: MovingAverage | None, batch: tuple[Tensor, Tensor]
    ) -> None:
        """Report and save where everything was on every rank. Raises PlacementError on all."""
        world = step.world
        mine = {"rank": world.rank, **_find_placement(step, average, batch).facts()}
        entries = [json.loads(line) for line in world.gather("placement", json.dumps(mine))]
        if world.is_main:
            with world.watchdog_paused():
                write_json(self.folder.path / PLACEMENT, entries)
        self._report(entries)

    def _report(self, entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            stops = [p for p in entry["problems"] if p["kind"] not in _ONLY_REPORTED]
            if stops:
                where = f"rank {entry['rank']}: " if len(entries) > 1 else ""
                raise PlacementError(
                    where + "\n".join(str(PlacementProblem(**one)) for one in stops)
                )
        report = (
            self.reporter.warn if any(entry["problems"] for entry in entries) else self.reporter.say
        )
        odd = next((entry for entry in entries if entry["problems"]), entries[0])
        others = [entry["device"] for entry in entries if entry is not odd]
        alike = f"; the other ranks on {', '.join(others)}" if others else ""
        report(f"placement: {odd['verdict']}{alike}")


def _find_placement(
    step: Step, average: MovingAverage | None, batch: tuple[Tensor, Tensor]
) -> Placement:
    inputs, targets = batch
    return placement(
        model=step.model,
        loss=step.loss,
        optimizer=step.optimizer,
        metrics=average and {"average": average.model},
        batch={"inputs": inputs, "targets": targets},
    )


@contextmanager
def naming_misplaced(new_network: Callable[[], nn.Module]) -> Iterator[None]:
    """If the block fails for a tensor on the wrong device, name that tensor in the error."""
    try:
        yield
    except RuntimeError as error:
        _explain(error, placement(model=new_network()))
        raise


def _explain(error: RuntimeError, proof: Placement) -> None:
    words = str(error).lower()
    if is_out_of_memory(error) or not any(word in words for word in _OF_DEVICES):
        return
    problems = [problem for problem in proof.problems if problem.kind != BUILD]
    if problems:
        raise PlacementError("\n".join(map(str, problems))) from error
