"""Saves of a run: when the last one was, what is kept beside it, and which one to go on from."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onsight.ranks.world import World
from onsight.report.console import Reporter
from onsight.step.step import Step
from onsight.step.update import MovingAverage
from onsight.tensorfile import DamagedFile
from onsight.training.run_folder.checkpoint import OtherCheckpoint, Snapshot, load_checkpoint
from onsight.training.run_folder.checkpoint_writer import CheckpointWriter
from onsight.training.run_folder.folder import RunFolder


class Saves:
    """Lets the first rank write a run's checkpoints and best weights beside the step.

    A file waits only for those before it. Trouble with copies elsewhere is warned of.
    """

    def __init__(
        self, folder: RunFolder, writer: CheckpointWriter, world: World, reporter: Reporter
    ) -> None:
        self.folder = folder
        self.writer = writer
        self.world = world
        self.reporter = reporter
        self.saved_at = time.monotonic()
        self.last_is_whole = False  # so it is kept when the next is written

    def load(self, step: Step, average: MovingAverage | None) -> dict[str, Any]:
        """The progress of the last checkpoint or, if that is damaged, of the one before it."""
        last, former = self.folder.last_checkpoint, self.folder.former_checkpoint
        try:
            facts = load_checkpoint(last, step, average)
        except OtherCheckpoint:
            raise
        except DamagedFile as error:
            try:
                facts = load_checkpoint(former, step, average)
            except DamagedFile:
                raise error from None
            self.reporter.warn(f"{error}; the run goes on from the checkpoint before it, {former}")
        else:
            self.last_is_whole = True
        return facts

    @property
    def seconds_ago(self) -> float:
        """Since the last checkpoint."""
        return time.monotonic() - self.saved_at

    def save(self, take: Callable[[], Snapshot]) -> None:
        """Begin to write a checkpoint; the whole one that it replaces is kept."""
        self.saved_at = time.monotonic()
        former = self.folder.former_checkpoint if self.last_is_whole else None
        self._write(self.folder.last_checkpoint, take, former)
        self.last_is_whole = True

    def save_best(self, take: Callable[[], Snapshot]) -> None:
        """Begin to write the weights that validated best."""
        self._write(self.folder.best_weights, take)

    def wait(self) -> None:
        """Wait until everything is written."""
        self.world.does("waiting until the checkpoints are written")
        with self.world.watchdog_paused():
            self.writer.wait()
        self._warn()

    def drop_former(self) -> None:
        """Training is over: its last checkpoint is enough."""
        if self.world.is_main:
            self.folder.former_checkpoint.unlink(missing_ok=True)

    def _write(self, path: Path, take: Callable[[], Snapshot], former: Path | None = None) -> None:
        if self.world.is_main:
            taken = take()
            with self.world.watchdog_paused():
                self.writer.write(path, taken, former)
            self._warn()

    def _warn(self) -> None:
        while self.writer.trouble:
            self.reporter.warn(self.writer.trouble.pop(0))
