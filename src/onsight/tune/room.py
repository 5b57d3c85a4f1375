"""Moves images to the device if a measured step leaves enough memory for them."""

from dataclasses import replace

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.data.loader import Images
from onsight.hardware.memory import peak_device_memory_bytes, reset_peak_device_memory
from onsight.text import data_size
from onsight.tune.compute import eager_options
from onsight.tune.training_data import TrainingData
from onsight.tune.trial import Trial
from onsight_explain.devices import (
    free_memory_bytes,
    has_streams,
    is_out_of_memory,
    release_cached_memory,
)

_SAFETY = 1.5  # times a step's peak, for evaluation, libraries and fragmentation
_CHUNK_BYTES = 512 << 20  # for images that are augmented together


def move_if_room(
    config: Config, data: TrainingData, residency: Choice[str], threads: int
) -> tuple[Choice[str], TrainingData]:
    """Move the images to the accelerator if they are not there only because a step may not fit.

    Args:
        residency: Where the images are now; the figure is their size in bytes.

    Returns:
        Where the images are, and the data with them.
    """
    images, free = data.dataset.images, free_memory_bytes(data.device)
    is_open = config.residency == "auto" and residency.value in ("memory", "map")
    may_fit = is_open and (residency.figure or 0) + _CHUNK_BYTES < free
    if not may_fit or config.freeze or not has_streams(data.device):
        return residency, data
    assert isinstance(images, Images)  # the only kind kept in memory
    peak = _measure_peak(eager_options(config, data.device, threads).apply(config), data)
    facts = f"they take {data_size(images.nbytes)} of the {data_size(free)} free"
    if peak is None or images.nbytes + _SAFETY * peak + _CHUNK_BYTES > free:
        took = "more than there is" if peak is None else data_size(peak)
        return replace(residency, reason=f"{facts}, and a step {took}"), data
    reason = f"{facts}, and a step, measured, {data_size(peak)}"
    moved = replace(data, images=images.to(data.device))
    return Choice("device", reason, residency.figure), moved


def _measure_peak(config: Config, data: TrainingData) -> int | None:
    """Return the most bytes on the device during two steps, or None if there were too few."""
    reset_peak_device_memory(data.device)
    try:
        trial = Trial(config, data)
        trial.timer(min(config.batch_size, len(data.dataset.ids(TRAIN))))(2)
        trial.flush()
        return peak_device_memory_bytes(data.device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        release_cached_memory(data.device)
