"""Chooses the number of epochs where neither the user nor a budget sets it."""

from onsight.choice import Choice
from onsight.config import Config

_MOST_SCRATCH, _MOST_TUNED = 60, 20  # more hardly help
_MOST_FOR_BEST = 2  # times as many


def most_epochs(config: Config, starts_from_weights: bool) -> int:
    """Return the most epochs that are worth their time."""
    most = _MOST_TUNED if starts_from_weights else _MOST_SCRATCH
    return _MOST_FOR_BEST * most if config.effort == "best" else most


def choose_epochs(config: Config, affordable: float) -> Choice[int]:
    """Choose the number of epochs of one training unless the user has set it.

    Args:
        affordable: How many there is time for, by their nominal costs.
    """
    if config.epochs != "auto":
        return Choice(config.epochs, "set by you")
    most = most_epochs(config, config.starts_from_weights)
    if affordable >= most:
        return Choice(most, "more would hardly help")
    epochs = max(1, int(affordable))
    return Choice(epochs, f"about as many as --effort {config.effort} has time for")
