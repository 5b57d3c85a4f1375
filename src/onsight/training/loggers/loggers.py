"""The loggers of a run; those that fail are dropped."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from onsight.evaluation.results import EpochRow, LossLine, Results
from onsight.installation import require
from onsight.report.console import Reporter
from onsight.training.loggers.logger import LoggedRun, Logger
from onsight.training.loggers.mlflow import MlflowLogger
from onsight.training.loggers.tensorboard import TensorBoardLogger
from onsight.training.loggers.wandb import WandbLogger

_LOGGERS: dict[str, Callable[[LoggedRun], Logger]] = {
    "tensorboard": TensorBoardLogger,
    "mlflow": MlflowLogger,
    "wandb": WandbLogger,
}


class Loggers:
    """Passes metrics on to every logger; a logger that fails is dropped with a warning.

    Args:
        names: The names of the loggers.
        warn: Reports a logger that fails.
    """

    def __init__(self, names: Sequence[str], warn: Callable[[str], None]) -> None:
        self.names = names
        self.warn = warn
        self.open: dict[str, Logger] = {}

    def start(self, run: LoggedRun) -> None:
        """Open the loggers of a run."""
        for name in self.names:
            try:
                self.open[name] = _LOGGERS[name](run)
            except Exception as error:
                self._warn(name, error)

    def begin(self, epochs: int, steps: int) -> None:
        self._call_each(lambda logger: logger.begin(epochs, steps))

    def log_epoch(self, row: EpochRow) -> None:
        self._call_each(lambda logger: logger.log_epoch(row))

    def log_line(self, line: LossLine, step: int) -> None:
        self._call_each(lambda logger: logger.log_line(line, step))

    def log_results(self, results: Results) -> None:
        self._call_each(lambda logger: logger.log_results(results))

    def close(self, finished: bool) -> None:
        self._call_each(lambda logger: logger.close(finished))

    def _call_each(self, call: Callable[[Logger], None]) -> None:
        for name, logger in [*self.open.items()]:
            try:
                call(logger)
            except Exception as error:
                del self.open[name]
                self._warn(name, error)

    def _warn(self, name: str, error: Exception) -> None:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        self.warn(f"the run continues without {name}, which failed: {reason}")


@contextmanager
def closing_loggers(names: Sequence[str], reporter: Reporter) -> Iterator[Loggers]:
    """Close the loggers that are started in the block on leaving it."""
    loggers = Loggers(names, reporter.warn)
    finished = False
    try:
        yield loggers
        finished = True
    finally:
        loggers.close(finished)


def check_installed(names: Sequence[str]) -> None:
    """Raise ConfigError if a logger's library is not installed."""
    for name in names:
        require(name, name, f"--log {name}", ", or leave it out")
