"""Logs to TensorBoard files in the folder `tensorboard/` of a run."""

from torch.utils.tensorboard import SummaryWriter

from onsight.evaluation.results import EpochRow, LossLine, Results
from onsight.report.console import headline
from onsight.training.loggers.logger import LoggedRun, get_report_path, select_epoch_figures

_TAGS = {
    "train_loss": "loss/train",
    "validation_loss": "loss/validation",
    "validation_accuracy": "accuracy/validation",
    "test_loss": "loss/test",
    "test_accuracy": "accuracy/test",
}


class TensorBoardLogger:
    """Writes event files; a resumed run replaces the points that it repeats."""

    def __init__(self, run: LoggedRun) -> None:
        self.folder = run.folder / "tensorboard"
        self.steps = 0
        self.epochs_writer: SummaryWriter | None = None
        self.steps_writer: SummaryWriter | None = None

    def begin(self, epochs: int, steps: int) -> None:
        """Start logging, and hide earlier points after this many epochs and steps."""
        self.steps = steps
        self.epochs_writer = SummaryWriter(str(self.folder), purge_step=epochs + 1)

    def log_epoch(self, row: EpochRow) -> None:
        assert self.epochs_writer
        for name, value in select_epoch_figures(row).items():
            self.epochs_writer.add_scalar(_TAGS.get(name, name), value, row["epoch"])
        self.epochs_writer.flush()

    def log_line(self, line: LossLine, step: int) -> None:
        if self.steps_writer is None:
            # In a separate folder, because purge_step applies to all tags of a folder.
            folder = self.folder / "steps"
            self.steps_writer = SummaryWriter(str(folder), purge_step=self.steps + 1)
        self.steps_writer.add_scalar("loss/train", line["loss"], step)
        self.steps_writer.add_scalar("seconds", line["seconds"], step)

    def log_results(self, results: Results) -> None:
        """Log the accuracy with its interval and the path of the report, as text."""
        assert self.epochs_writer
        self.epochs_writer.add_text("results", f"{headline(results)}\n\n{get_report_path(results)}")

    def close(self, finished: bool) -> None:
        for writer in (self.epochs_writer, self.steps_writer):
            if writer:
                writer.close()
