"""The errors that Onsight raises on purpose, with the exit codes of the command line."""

import difflib
from collections.abc import Iterable

import onsight_explain.errors


class OnsightError(Exception):
    """The run failed; the message states what happened and what to do."""

    exit_code = 1


class DiskError(OnsightError):
    """A file could not be written; the message names the path and the space needed."""


class ExportMismatch(OnsightError):
    """An exported model does not predict what the model predicts; nothing was written."""


class NonFiniteLoss(OnsightError):
    """The loss became NaN or infinite; no update was made from it."""


class RankLost(OnsightError):
    """Another process of the job is gone or stuck; the message names it."""


class RemoteFailed(OnsightError):
    """A server that holds DATA keeps failing, or cannot be reached."""


class Interrupted(OnsightError):
    """A signal stopped the run; a checkpoint was written first."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number

    def within(self, part: str) -> "Interrupted":
        """Return the same stop, its message naming the network or fold that was being trained."""
        return Interrupted(f"{part}: {self}", self.exit_code - 128)


class UserError(OnsightError):
    """Something the user can fix."""

    exit_code = 2


class ArgumentError(UserError, ValueError):
    """An argument of a call in Python cannot be used."""


class NotFitted(ArgumentError, AttributeError):
    """An estimator cannot predict before it is fitted."""


class ConfigError(UserError):
    """A flag, a field or a config file is wrong."""


class NothingAdded(OnsightError):
    """A network adds nothing to those that were trained before it."""


class BudgetTooSmall(ConfigError):
    """A time budget in which nothing can be trained; the message names one that should work."""


class DataError(UserError):
    """DATA cannot be used as it is."""


class ImagesChanged(DataError):
    """A resumed run has other images than when it began."""

    def __init__(self, run: object) -> None:
        """Name the run's folder."""
        super().__init__(
            f"the images changed since the run in {run} began; "
            "start a new run, or restore the original images"
        )


class MissingDataset(DataError):
    """The files of a dataset known by name are missing; the message names the folder for them."""


class DeviceError(UserError):
    """The requested device does not exist."""


class ModelError(UserError):
    """A model name, a module or a model file cannot be used."""


class OutputError(UserError):
    """The run folder cannot be used."""


class PlacementError(UserError, onsight_explain.errors.PlacementError):
    """A tensor is on the wrong device; the message names it and the line that fixes it."""


class ImageError(Exception):
    """One image cannot be used; the message is its reason."""


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return " Did you mean a, b?" with the options closest to a name, or an empty string."""
    matches = difflib.get_close_matches(name, list(options), n=3, cutoff=0.65)
    return f" Did you mean {', '.join(matches)}?" if matches else ""
