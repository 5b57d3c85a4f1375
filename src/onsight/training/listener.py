"""What happens during training, for consoles, files and loggers."""

from contextlib import ExitStack
from pathlib import Path

from onsight.evaluation.results import EpochRow
from onsight.report.console import Bar, Reporter
from onsight.step.step import StepListener
from onsight.training.decisions import Decisions
from onsight.training.loggers.loggers import Loggers
from onsight.training.progress import Progress, Record, epoch_line


class Listener(StepListener):
    """Is told what happens during training; does nothing by default."""

    def training_started(self, progress: Progress) -> None:
        """Training begins, or goes on from a checkpoint. The progress changes in place."""

    def segment_started(self, images: int) -> None:
        """The next steps begin. images: of an epoch."""

    def step_finished(self, images: int) -> None:
        """A step with a number of images was made."""

    def wants_line(self, step: int) -> bool:
        """Return whether to report the loss after this step of an epoch, which costs a wait."""
        return False

    def line(self) -> None:
        """The losses of all steps so far are known."""

    def epoch_finished(self, row: EpochRow) -> None:
        """The metrics of an epoch are known, or some that were missing."""

    def nothing_trained(self) -> None:
        """There was no time for a single step."""

    def closed(self) -> None:
        """Training has ended, or failed."""


class RunListener(Listener):
    """Shows training on the console, and writes metrics.jsonl and to loggers.

    Args:
        reporter: The console.
        folder: Where metrics.jsonl is written; None on ranks that write nothing.
        loggers: Are told of every epoch.
        decisions: Record when memory ran out.
        epochs: How many there will be; 0 if that is not known.
        line_steps: Steps of an epoch between two lines; 0 for none.
    """

    def __init__(
        self,
        reporter: Reporter,
        folder: Path | None,
        loggers: Loggers,
        decisions: Decisions,
        epochs: int,
        line_steps: int,
    ) -> None:
        self.reporter = reporter
        self.folder = folder
        self.loggers = loggers
        self.decisions = decisions
        self.epochs = epochs
        self.line_steps = line_steps
        self.progress = Progress()
        self._record: Record | None = None
        self._bar: Bar | None = None
        self._open = ExitStack()

    def training_started(self, progress: Progress) -> None:
        """Write the rows of earlier epochs."""
        self.progress = progress
        if self.folder:
            self._record = Record(self.folder, progress.rows, progress.steps_done, self.loggers)

    def segment_started(self, images: int) -> None:
        """Show a progress bar for the epoch."""
        if self._bar is None:
            of = f"/{self.epochs}" if self.epochs else ""
            title = f"epoch {self.progress.epoch + 1}{of}"
            self._bar = self._open.enter_context(self.reporter.bar(title, images))
            self._bar.done = self.progress.epoch_images

    def step_finished(self, images: int) -> None:
        """Advance the bar."""
        if self._bar:
            self._bar.advance(images, self._facts)

    def wants_line(self, step: int) -> bool:
        """Return whether a line is due."""
        return bool(self.line_steps) and step % self.line_steps == 0

    def line(self) -> None:
        """Report the mean loss since the last line."""
        line = self.progress.close_line(self.line_steps)
        if self._record:
            self._record.add_line(line, self.progress.steps_done)
        self.reporter.say(
            f"[{self.progress.epoch + 1}, {line['step']:5d}] loss: {line['loss']:.3f}, "
            f"{line['seconds']:.1f} s"
        )

    def epoch_finished(self, row: EpochRow) -> None:
        """Write and show the row."""
        self.closed()
        if self._record:
            self._record.add(row)
        if row["epoch"]:
            self.reporter.say(epoch_line(row, self.epochs))

    def nothing_trained(self) -> None:
        """Warn that the model has learned nothing."""
        self.reporter.warn("there was no time for a single step: the model has not learned")

    def out_of_memory(self, parts: int) -> None:
        """Report and record that batches are computed in more parts from this step on."""
        self.reporter.warn(
            f"out of memory: each batch is now computed in {parts} parts, with the same update "
            "(but batch norm sees one part at a time); use --accumulate to start that way"
        )
        self.progress.accumulate = parts
        name = accumulate_name(self.progress.epoch, self.progress.step)
        self.decisions.record(name, parts)

    def graph_refused(self, reason: str) -> None:
        """Warn that steps are slower."""
        self.reporter.warn(f"steps are not replayed as a CUDA graph: {reason}")

    def closed(self) -> None:
        """Close the progress bar."""
        self._open.close()
        self._bar = None

    def _facts(self) -> dict[str, float]:
        """Return what the progress bar shows."""
        now = self.progress
        facts = {
            "loss": now.mean_loss,
            "waiting for data": now.epoch_wait_seconds / max(1e-9, now.epoch_seconds),
        }
        if now.best_accuracy >= 0:
            facts["best accuracy"] = now.best_accuracy
        return facts


def accumulate_name(epoch: int, step: int) -> str:
    """Return the name of the decision to compute batches in more parts, from this step on."""
    return f"accumulate from epoch {epoch}, step {step}"
