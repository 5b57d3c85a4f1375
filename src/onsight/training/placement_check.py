"""Checks on which device each tensor of a training step is, and writes placement.json."""

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

# The first step has succeeded with these, so they are a warning instead of an error.
_HARMLESS_KINDS = {ATTRIBUTE, BUILD}
_DEVICE_ERROR_WORDS = ("device", "weight type")  # one is in each of torch's device mismatch errors


@contextmanager
def checking_placement(
    folder: RunFolder,
    reporter: Reporter,
    step: Step,
    average: MovingAverage | None,
    batch: tuple[Tensor, Tensor],
) -> Iterator[None]:
    """Check where the tensors of the step in the block are, on all ranks; report and save it.

    Errors about devices become a PlacementError that names the misplaced tensors.

    Args:
        folder: The run folder, for placement.json.
        average: The moving average of the weights, if there is one.
        batch: The inputs and targets of the step.

    Raises:
        PlacementError: A tensor is misplaced on some rank; raised on every rank.
    """
    try:
        yield
    except RuntimeError as error:
        _raise_if_misplaced(error, _find_placement(step, average, batch))
        raise
    world = step.world
    entry = {"rank": world.rank, **_find_placement(step, average, batch).facts()}
    entries = [json.loads(line) for line in world.gather("placement", json.dumps(entry))]
    if world.is_main:
        with world.watchdog_paused():
            write_json(folder.path / PLACEMENT, entries)
    _report(entries, reporter)


def _report(entries: list[dict[str, Any]], reporter: Reporter) -> None:
    for entry in entries:
        problems = [PlacementProblem(**problem) for problem in entry["problems"]]
        harmful = [problem for problem in problems if problem.kind not in _HARMLESS_KINDS]
        if harmful:
            rank = f"rank {entry['rank']}: " if len(entries) > 1 else ""
            raise PlacementError(rank + "\n".join(map(str, harmful)))
    shown = next((entry for entry in entries if entry["problems"]), entries[0])
    report = reporter.warn if shown["problems"] else reporter.detail
    others = [entry["device"] for entry in entries if entry is not shown]
    suffix = f"; the other ranks on {', '.join(others)}" if others else ""
    report(f"placement: {shown['verdict']}{suffix}")


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
    """Turn errors about devices into a PlacementError that names the misplaced tensors.

    Args:
        new_network: Makes the network that is used in the block.
    """
    try:
        yield
    except RuntimeError as error:
        _raise_if_misplaced(error, placement(model=new_network()))
        raise


def _raise_if_misplaced(error: RuntimeError, found: Placement) -> None:
    message = str(error).lower()
    if is_out_of_memory(error) or not any(word in message for word in _DEVICE_ERROR_WORDS):
        return
    problems = [problem for problem in found.problems if problem.kind != BUILD]
    if problems:
        raise PlacementError("\n".join(map(str, problems))) from error
