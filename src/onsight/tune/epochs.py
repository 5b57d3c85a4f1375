"""Chooses the number of epochs where neither the user nor a budget sets it."""

from onsight.choice import Choice
from onsight.config import Config

_SCRATCH_IMAGES, _MIN_SCRATCH, _MAX_SCRATCH = 200_000, 10, 60  # images in all epochs; epochs
_TUNED_IMAGES, _MIN_TUNED, _MAX_TUNED = 40_000, 8, 20


def choose_epochs(config: Config, training: int) -> Choice[int]:
    """Choose the number of epochs, by the number of training images unless the user has set it."""
    if config.epochs != "auto":
        return Choice(config.epochs, "set by you")
    if config.starts_from_weights:
        images, least, most, start = _TUNED_IMAGES, _MIN_TUNED, _MAX_TUNED, "trained weights"
    else:
        images, least, most, start = _SCRATCH_IMAGES, _MIN_SCRATCH, _MAX_SCRATCH, "random weights"
    epochs = min(most, max(least, round(images / max(1, training))))
    return Choice(epochs, f"usual for {training:,} training images and {start}")
