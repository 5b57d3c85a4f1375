"""Which batch size fits a time budget: enough steps matter more than large batches."""

from onsight.choice import Choice
from onsight.config import Config
from onsight.step.fine_tuning import fine_tunes
from onsight.step.timing import Timing

SMALLEST = 8
_FEWEST_STEPS = 30  # in the whole training
_LEAST_TUNING_BATCH = 32
_STEPS_OF_EPOCH = 30  # with fewer, and two epochs, fine-tuning ends before it has begun


def usual_batch(config: Config, training: int) -> Choice[int]:
    """The batch size as asked, or the default; smaller for fine-tuning on few images."""
    if "batch_size" in config.model_fields_set:
        return Choice(config.batch_size, "set by you")
    size = config.batch_size
    if fine_tunes(config):
        while size > _LEAST_TUNING_BATCH and training < _STEPS_OF_EPOCH * size:
            size //= 2
    if size == config.batch_size:
        return Choice(size, "the default")
    return Choice(size, f"more steps: {training:,} training images are few to fine-tune with")


def fit_batch(config: Config, step: Timing, seconds: float, training: int) -> Choice[int]:
    """The batch size with which at least 30 steps fit into the seconds, or the smallest of 8.

    step: seconds of a training step; training: the number of images. A batch size that was asked
    for is kept.
    """
    kept = usual_batch(config, training)
    fitted = kept.value
    if "batch_size" not in config.model_fields_set:
        while fitted > SMALLEST and seconds < _FEWEST_STEPS * step.at(fitted):
            fitted = 1 << ((fitted - 1).bit_length() - 1)  # the next smaller power of two
    if fitted == kept.value:
        return kept
    before, after = (max(0.0, seconds / step.at(size)) for size in (kept.value, fitted))
    reason = f"about {after:.0f} steps fit into the budget; with {kept.value} only {before:.0f}"
    return Choice(fitted, reason, after)
