"""Where everything of a run really was: proven after its first step, kept in placement.json."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from onsight.config import Config
from onsight.errors import PlacementError
from onsight.files import write_json
from onsight.hardware.memory import is_out_of_memory
from onsight.hardware.placement.placement import Placement, placement
from onsight.hardware.placement.problems import BUILD, Problem
from onsight.hardware.placement.table import ATTRIBUTE
from onsight.report.console import Reporter
from onsight.training.prepare import PreparedRun
from onsight.training.run_folder.folder import RunFolder
from onsight.training.step.ema import MovingAverage
from onsight.training.step.step import Step

PLACEMENT = "placement.json"

# A step that went well has shown that it can do with these: they are told, and stop nothing.
_TOLD_ONLY = {ATTRIBUTE, BUILD}
_OF_DEVICES = ("device", "weight type")  # in every message of torch about tensors of two devices


class PlacementCheck:
    """Looks where all ranks have what a step needs, once: after the first step of this process."""

    def __init__(
        self, step: Step, average: MovingAverage | None, folder: RunFolder, reporter: Reporter
    ) -> None:
        self.step = step
        self.average = average
        self.folder = folder
        self.reporter = reporter
        self.is_done = False

    def check(self, inputs: Tensor, targets: Tensor) -> None:
        """Tell it, keep it, and compare the ranks. Raises PlacementError, at every rank alike."""
        self.is_done = True
        world = self.step.world
        mine = {"rank": world.rank, **self._look(inputs, targets).facts()}
        told = [json.loads(line) for line in world.gather("placement", json.dumps(mine))]
        if world.is_main:
            with world.watchdog_paused():
                write_json(self.folder.path / PLACEMENT, told)
        self._tell(told)

    def explain(self, error: RuntimeError, inputs: Tensor, targets: Tensor) -> None:
        """Raise PlacementError if the first step failed for tensors on different devices."""
        if not self.is_done:
            _explain(error, self._look(inputs, targets))

    def _look(self, inputs: Tensor, targets: Tensor) -> Placement:
        return placement(
            model=self.step.model,
            loss=self.step.loss,
            optimizer=self.step.optimizer,
            metrics=self.average and {"average": self.average.model},
            batch={"inputs": inputs, "targets": targets},
        )

    def _tell(self, told: list[dict[str, Any]]) -> None:
        for entry in told:
            stops = [p for p in entry["problems"] if p["kind"] not in _TOLD_ONLY]
            if stops:
                where = f"rank {entry['rank']}: " if len(told) > 1 else ""
                raise PlacementError(where + "\n".join(str(Problem(**one)) for one in stops))
        tell = self.reporter.warn if any(entry["problems"] for entry in told) else self.reporter.say
        odd = next((entry for entry in told if entry["problems"]), told[0])
        others = [entry["device"] for entry in told if entry is not odd]
        alike = f"; the other ranks on {', '.join(others)}" if others else ""
        tell(f"placement: {odd['verdict']}{alike}")


@contextmanager
def naming_misplaced(material: PreparedRun, config: Config) -> Iterator[None]:
    """Name what lies on the wrong device where a trial of the network fails for it."""
    try:
        yield
    except RuntimeError as error:
        _explain(error, placement(model=material.draft(config)))
        raise


def _explain(error: RuntimeError, proof: Placement) -> None:
    words = str(error).lower()
    if is_out_of_memory(error) or not any(word in words for word in _OF_DEVICES):
        return
    problems = [problem for problem in proof.problems if problem.kind != BUILD]
    if problems:
        raise PlacementError("\n".join(map(str, problems))) from error
