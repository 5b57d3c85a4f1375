"""Chooses the batch size: enough steps matter more than large batches."""

from onsight.choice import Choice
from onsight.config import Config
from onsight.step.fine_tuning import fine_tunes
from onsight.step.timing import Timing

MIN_BATCH_SIZE = 8
_MIN_STEPS = 30  # in the whole training
_MIN_FINE_TUNING_BATCH = 32
_MIN_STEPS_PER_EPOCH = 30  # of fine-tuning, which may have as few as two epochs


def usual_batch(config: Config, training: int) -> Choice[int]:
    """Return the configured batch size, or the default, made smaller to fine-tune on few images.

    Args:
        config: The settings of the run.
        training: The number of training images.
    """
    if "batch_size" in config.model_fields_set:
        return Choice(config.batch_size, "set by you")
    size = config.batch_size
    if fine_tunes(config):
        while size > _MIN_FINE_TUNING_BATCH and training < _MIN_STEPS_PER_EPOCH * size:
            size //= 2
    if size == config.batch_size:
        return Choice(size, "the default")
    return Choice(size, f"more steps: {training:,} training images are few to fine-tune with")


def fit_batch(config: Config, step: Timing, seconds: float, training: int) -> Choice[int]:
    """Return the largest batch size with which at least 30 steps fit into a time, or 8.

    Args:
        config: The settings of the run; a configured batch size is kept.
        step: Seconds of a training step.
        seconds: The time for training.
        training: The number of training images.
    """
    usual = usual_batch(config, training)
    size = usual.value
    if "batch_size" not in config.model_fields_set:
        while size > MIN_BATCH_SIZE and seconds < _MIN_STEPS * step.at(size):
            size = 1 << ((size - 1).bit_length() - 1)  # the next smaller power of two
    if size == usual.value:
        return usual
    before, after = (max(0.0, seconds / step.at(batch)) for batch in (usual.value, size))
    reason = f"about {after:.0f} steps fit into the budget; with {usual.value} only {before:.0f}"
    return Choice(size, reason, figure=after)
