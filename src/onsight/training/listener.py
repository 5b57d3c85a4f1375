"""Callbacks of training: the console, metrics.jsonl and loggers."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from onsight.evaluation.results import EpochRow
from onsight.report.console import Bar, Reporter
from onsight.step.step import StepListener
from onsight.training.decisions import Decisions
from onsight.training.loggers.loggers import Loggers
from onsight.training.progress import Progress, format_epoch, write_metrics

NOTHING_TRAINED = "the budget ended before the first training step: the model is untrained"


@dataclass
class Listener(StepListener):
    """Shows training on the console, and logs it to metrics.jsonl and the loggers."""

    reporter: Reporter
    folder: Path | None  # run folder, for metrics.jsonl; None on ranks that do not write it
    loggers: Loggers  # of the run; none are open on those ranks
    decisions: Decisions  # on record: the steps at which memory ran out
    epochs: int  # number of epochs; 0 if unknown
    line_steps: int  # between two loss lines; 0 for no lines
    progress: Progress = field(default_factory=Progress, init=False)
    _bar: Bar | None = field(default=None, init=False)
    _open: ExitStack = field(default_factory=ExitStack, init=False)

    def training_started(self, progress: Progress) -> None:
        """Log the rows of earlier epochs; the trainer goes on to update the progress in place."""
        self.progress = progress
        self._save_rows()
        self.loggers.begin(len(progress.rows), progress.steps_done)

    def segment_started(self, images: int) -> None:
        """Show a progress bar for the epoch, which has this number of images."""
        if self._bar is None:
            of = f"/{self.epochs}" if self.epochs else ""
            title = f"epoch {self.progress.epoch + 1}{of}"
            self._bar = self._open.enter_context(self.reporter.bar(title, images))
            self._bar.done = self.progress.epoch_images

    def step_finished(self, images: int) -> None:
        """Advance the progress bar."""
        if self._bar:
            self._bar.advance(images, self._bar_facts)

    def should_log_loss(self, step: int) -> bool:
        """Return whether a loss line is due after this step of an epoch.

        The trainer then waits for the device, so that the progress has the losses of all steps.
        """
        return bool(self.line_steps) and step % self.line_steps == 0

    def log_loss(self) -> None:
        """Log the mean loss since the last loss line."""
        line = self.progress.close_line(self.line_steps)
        self.loggers.log_line(line, self.progress.steps_done)
        self.reporter.say(
            f"[{self.progress.epoch + 1}, {line['step']:5d}] loss: {line['loss']:.3f}, "
            f"{line['seconds']:.1f} s"
        )

    def epoch_finished(self, row: EpochRow) -> None:
        """Log and show the row; called again if metrics are added to it later."""
        self.closed()
        self._save_rows()
        self.loggers.log_epoch(row)
        if row["epoch"]:
            self.reporter.progress(format_epoch(row, self.epochs))

    def nothing_trained(self) -> None:
        """Warn that the model is untrained."""
        self.reporter.warn(NOTHING_TRAINED)

    def out_of_memory(self, parts: int) -> None:
        """Report and record that batches are split into more parts from this step on."""
        self.reporter.warn(
            f"out of memory: each batch is now computed in {parts} parts, with the same update "
            "(but batch norm sees one part at a time); use --accumulate to start that way"
        )
        self.progress.accumulate = parts
        self.decisions.record(
            name_accumulate_decision(self.progress.epoch, self.progress.step), parts
        )

    def graph_refused(self, reason: str) -> None:
        """Warn that steps are not replayed, which makes them slower."""
        self.reporter.warn(f"steps are not replayed as a CUDA graph: {reason}")

    def closed(self) -> None:
        """Close the progress bar."""
        self._open.close()
        self._bar = None

    def _save_rows(self) -> None:
        if self.folder:
            write_metrics(self.folder, self.progress.rows)

    def _bar_facts(self) -> dict[str, float]:
        now = self.progress
        facts = {
            "loss": now.mean_loss,
            "waiting for data": now.epoch_wait_seconds / max(1e-9, now.epoch_seconds),
        }
        if now.best_accuracy >= 0:
            facts[self._best_fact()] = now.best_accuracy
        return facts

    def _best_fact(self) -> str:
        """Name the best epoch's accuracy so that nobody takes it for the result."""
        images = self.progress.rows[-1]["validation_images"] if self.progress.rows else 0
        return f"best epoch on {images:,} validation images" if images else "best epoch"


def name_accumulate_decision(epoch: int, step: int) -> str:
    """Return the name of the decision to split batches into more parts from this step on."""
    return f"accumulate from epoch {epoch}, step {step}"
