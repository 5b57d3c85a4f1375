"""Chooses the batch size: enough steps matter more than large batches."""

from onsight.choice import Choice
from onsight.config import Config
from onsight.step.fine_tuning import fine_tunes

MIN_BATCH_SIZE = 8
_MIN_FINE_TUNING_BATCH = 32
_MIN_STEPS_PER_EPOCH = 30  # of fine-tuning, which may have as few as two epochs


def usual_batch(config: Config, training: int) -> Choice[int]:
    """Return the configured batch size, or the default, smaller to fine-tune on few images."""
    if "batch_size" in config.model_fields_set:
        return Choice(config.batch_size, "set by you")
    size = config.batch_size
    if fine_tunes(config):
        while size > _MIN_FINE_TUNING_BATCH and training < _MIN_STEPS_PER_EPOCH * size:
            size //= 2
    if size == config.batch_size:
        return Choice(size, "the default")
    return Choice(size, f"more steps: {training:,} training images are few to fine-tune with")
