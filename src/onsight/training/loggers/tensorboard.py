"""TensorBoard: the folder `tensorboard/` of a run."""

from torch.utils.tensorboard import SummaryWriter

from onsight.evaluation.results import EpochRow, LossLine, Results
from onsight.report.console import headline
from onsight.training.loggers.logger import LoggedRun, epoch_figures, report_place

_TAGS = {
    "train_loss": "loss/train",
    "validation_loss": "loss/validation",
    "validation_accuracy": "accuracy/validation",
    "test_loss": "loss/test",
    "test_accuracy": "accuracy/test",
}


class TensorBoardLogger:
    """Writes event files, and again what a resumed run repeats."""

    def __init__(self, run: LoggedRun) -> None:
        self.folder = run.folder / "tensorboard"
        self.steps = 0
        self.epochs_writer: SummaryWriter | None = None
        self.steps_writer: SummaryWriter | None = None

    def begin(self, epochs: int, steps: int) -> None:
        """Start, or continue: what was written after so many epochs and steps is repeated."""
        self.steps = steps
        self.epochs_writer = SummaryWriter(str(self.folder), purge_step=epochs + 1)

    def log_epoch(self, row: EpochRow) -> None:
        """Write an epoch's figures."""
        assert self.epochs_writer
        for name, value in epoch_figures(row).items():
            self.epochs_writer.add_scalar(_TAGS.get(name, name), value, row["epoch"])
        self.epochs_writer.flush()

    def log_line(self, line: LossLine, step: int) -> None:
        """Write a line's mean loss and elapsed seconds at a step of the whole run."""
        if self.steps_writer is None:
            # A folder of their own: on resuming, TensorBoard purges by one count per folder.
            folder = self.folder / "steps"
            self.steps_writer = SummaryWriter(str(folder), purge_step=self.steps + 1)
        self.steps_writer.add_scalar("loss/train", line["loss"], step)
        self.steps_writer.add_scalar("seconds", line["seconds"], step)

    def log_results(self, results: Results) -> None:
        """Write the accuracy with its interval, and where the report is, as text."""
        assert self.epochs_writer
        self.epochs_writer.add_text("results", f"{headline(results)}\n\n{report_place(results)}")

    def close(self, finished: bool) -> None:
        """Write what is still buffered."""
        for writer in (self.epochs_writer, self.steps_writer):
            if writer:
                writer.close()
