"""The loggers of a run: all are told everything, and one that fails is done without."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from onsight.evaluation.results import EpochRow, LossLine, Results
from onsight.installation import require
from onsight.report.console import Reporter
from onsight.training.loggers.logger import LoggedRun, Logger
from onsight.training.loggers.mlflow import MlflowLogger
from onsight.training.loggers.tensorboard import TensorBoardLogger
from onsight.training.loggers.wandb import WandbLogger

_MAKERS: dict[str, Callable[[LoggedRun], Logger]] = {
    "tensorboard": TensorBoardLogger,
    "mlflow": MlflowLogger,
    "wandb": WandbLogger,
}


class Loggers:
    """Tells every logger; the first failure of one is a warning, and its end."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.warn = warn
        self.open: dict[str, Logger] = {}

    def add(self, name: str, run: LoggedRun) -> None:
        """Open a logger by its name."""
        try:
            self.open[name] = _MAKERS[name](run)
        except Exception as error:
            self._fail(name, error)

    def begin(self, epochs: int, steps: int) -> None:
        """Start, or continue after so many epochs and steps that are logged already."""
        self._tell(lambda logger: logger.begin(epochs, steps))

    def log_epoch(self, row: EpochRow) -> None:
        """Show an epoch's figures."""
        self._tell(lambda logger: logger.log_epoch(row))

    def log_line(self, line: LossLine, step: int) -> None:
        """Show a line's mean loss and elapsed seconds at a step of the whole run."""
        self._tell(lambda logger: logger.log_line(line, step))

    def log_results(self, results: Results) -> None:
        """Show what came of the run, and where its report is."""
        self._tell(lambda logger: logger.log_results(results))

    def close(self, finished: bool) -> None:
        """Write what is still buffered. finished: whether the run came to its end."""
        self._tell(lambda logger: logger.close(finished))

    def _tell(self, what: Callable[[Logger], None]) -> None:
        for name, logger in [*self.open.items()]:
            try:
                what(logger)
            except Exception as error:
                del self.open[name]
                self._fail(name, error)

    def _fail(self, name: str, error: Exception) -> None:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        self.warn(f"the run goes on without {name}, which failed: {reason}")


@contextmanager
def logging(names: Sequence[str], run: LoggedRun, reporter: Reporter) -> Iterator[Loggers]:
    """Loggers for a run, closed at its end, however it ends."""
    loggers = Loggers(reporter.warn)
    finished = False
    try:
        for name in names:
            loggers.add(name, run)
        yield loggers
        finished = True
    finally:
        loggers.close(finished)


def check_installed(names: Sequence[str]) -> None:
    """Raise ConfigError, before any work, if a logger's library is missing."""
    for name in names:
        require(name, name, f"--log {name}", ", or leave it out")
