"""Which image size fits a time budget, by what was measured before anything is decoded."""

from onsight.choice import Choice
from onsight.training.images.pace import Pace, Size

TIMED = (64, 64)  # (height, width) in pixels of the images that the pace is measured with

# Larger images pay off only with enough epochs: (side in pixels, epochs needed).
_SIZES = ((128, 20), (96, 15), (64, 4), (48, 3), (32, 0))


def fit_image_size(pace: Pace, images: int, seconds: float, more: float) -> Choice[Size]:
    """The largest (height, width) in pixels for which there is enough time.

    images: n to decode and to train on; seconds: for both; more: seconds in addition with twice
    the budget.
    """
    side, later = (_side(pace, images, time) for time in (seconds, seconds + more))
    epochs = _epochs(pace, side, images, seconds)
    reason = f"the largest that there is time to train on, about {epochs:.1f} epochs"
    twice = f"; with twice the time {later}x{later}" if later > side else ""
    return Choice((side, side), reason + twice, epochs)


def _side(pace: Pace, images: int, seconds: float) -> int:
    return next(s for s, least in _SIZES if _epochs(pace, s, images, seconds) >= least)


def _epochs(pace: Pace, side: int, images: int, seconds: float) -> float:
    """How many epochs over the images (side x side pixels) fit into the given seconds."""
    step = pace.at((side, side)).train.per_image
    return max(0.0, seconds - images * pace.decode_seconds) / (images * step)
