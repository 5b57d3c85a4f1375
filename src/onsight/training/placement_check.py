"""Checks after a run's first step where every tensor really was, and keeps placement.json."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from onsight.data.loader import Batch
from onsight.errors import PlacementError
from onsight.files import write_json
from onsight.report.console import Reporter
from onsight.step.update import Update
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

    def __init__(self, update: Update, folder: RunFolder, reporter: Reporter) -> None:
        self.update = update
        self.folder = folder
        self.reporter = reporter
        self.is_done = False

    def first_update(self, batch: Batch, epoch: int, step: int) -> list[float]:
        """Make the update, then report and save where everything was on every rank.

        Raises PlacementError, on every rank alike, also if the update failed because of it.
        """
        inputs, targets = self.update.augmented(batch, epoch, step)
        try:
            losses = self.update.make(inputs, targets, batch.global_labels)
        except RuntimeError as error:
            _explain(error, self._look(inputs, targets))
            raise
        self.is_done = True
        self._check(inputs, targets)
        return losses

    def _check(self, inputs: Tensor, targets: Tensor) -> None:
        world = self.update.step.world
        mine = {"rank": world.rank, **self._look(inputs, targets).facts()}
        entries = [json.loads(line) for line in world.gather("placement", json.dumps(mine))]
        if world.is_main:
            with world.watchdog_paused():
                write_json(self.folder.path / PLACEMENT, entries)
        self._report(entries)

    def _look(self, inputs: Tensor, targets: Tensor) -> Placement:
        step, average = self.update.step, self.update.average
        return placement(
            model=step.model,
            loss=step.loss,
            optimizer=step.optimizer,
            metrics=average and {"average": average.model},
            batch={"inputs": inputs, "targets": targets},
        )

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
