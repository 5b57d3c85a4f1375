"""Which batch size fits a time budget: enough steps matter more than large batches."""

from onsight.choice import Choice
from onsight.config import Config
from onsight.training.step.growing import Timing

SMALLEST = 8
_FEWEST_STEPS = 30  # in the whole training


def keep_batch(config: Config) -> Choice[int]:
    """The config's batch size, and whether somebody asked for it."""
    is_asked = "batch_size" in config.model_fields_set
    return Choice(config.batch_size, "as asked" if is_asked else "the default")


def fit_batch(config: Config, step: Timing, seconds: float) -> Choice[int]:
    """The batch size with which at least 30 steps fit into the seconds, or the smallest of 8.

    step: seconds of a training step. A batch size that was asked for is kept.
    """
    kept = keep_batch(config)
    fitted = kept.value
    if "batch_size" not in config.model_fields_set:
        while fitted > SMALLEST and seconds < _FEWEST_STEPS * step.at(fitted):
            fitted = 1 << ((fitted - 1).bit_length() - 1)  # the next smaller power of two
    if fitted == kept.value:
        return kept
    before, after = (max(0.0, seconds / step.at(size)) for size in (kept.value, fitted))
    reason = f"about {after:.0f} steps fit into the budget; with {kept.value} only {before:.0f}"
    return Choice(fitted, reason, after)
