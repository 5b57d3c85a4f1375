"""What to expect of each model in the time there is, from its short trial."""

import math
from dataclasses import dataclass, replace
from typing import Any

from onsight.choice import Choice
from onsight.text import percent
from onsight.tune.auto.trials import Tried, error_of

# Rules of thumb from runs of 10 s to 300 s on four kinds of images (NOTEBOOK.md).
_SLOWEST, _FASTEST, _USUAL_LEARNING = 0.1, 0.3, 0.15  # powers with which mistakes of a net from
# scratch fall with the images seen, counting each time
_MOST_AGAIN = 20.0  # times each: more hardly helps
_SIZE_EXPONENT = 0.6  # mistakes of a pretrained backbone fall with the side of the image
_LEAST_MORE = 0.1  # times the trial's images: nothing is known of fewer
_LEAST_CURVE, _MOST_CURVE, _USUAL_CURVE = 0.1, 0.55, 0.3  # and with the images, as measured
_CLEARLY = 0.8  # times the mistakes: forecasts from short trials are no better than that
_ENOUGH_JUDGED = 100  # images: fewer are no reason to leave what usually wins
_TUNING_EXPONENT = 0.08  # mistakes fall with 1 + epochs of fine-tuning to this power
_LEAST_TUNING, _MOST_TUNING = 2.0, 8.0  # epochs: with fewer there is no gain, more add little
_TUNING_IMAGES = 200  # with fewer, validation cannot tell whether there is one
TRAINING_COST = 3.3  # a training step over a forward pass, images equal

_FITTING, _FITTING_START = 3e-5, 3.0  # seconds to fit a head: for an image and class, and at all


@dataclass(frozen=True)
class Task:
    """How much there is to do: images to train on, all others to evaluate, seconds for both.

    views: of each image for a head; is_limited: whether a head may do with fewer images if
    there is no time for all; is_frozen: whether the backbone must stay as it is.
    """

    training: int
    others: int
    seconds: float
    classes: int
    views: int
    is_limited: bool
    is_frozen: bool = False

    def with_time(self, times: float) -> "Task":
        """The same with that many times the seconds."""
        return replace(self, seconds=times * self.seconds)


@dataclass(frozen=True)
class Outlook:
    """A model that could be made: the config fields for it, and the mistakes to expect.

    judged: images that its trial was judged by.
    """

    name: str
    fields: dict[str, Any]
    error: float
    judged: int

    def __str__(self) -> str:
        return f"{self.name}: estimated accuracy {percent(1 - self.error)}"


def scratch_outlook(name: str, fields: dict[str, Any], tried: Tried, task: Task) -> Outlook:
    """A net from scratch, trained for the whole time."""
    different = max(tried.trained, task.training)
    seen = max(tried.seen, min(_MOST_AGAIN * different, task.seconds / tried.image_seconds))
    error = tried.error * (seen / tried.seen) ** -_learning(tried)
    return Outlook(f"{name} from scratch", fields, error, tried.judged)


def pretrained_outlook(
    name: str, fields: dict[str, Any], tried: Tried, tried_side: int, sides: list[int], task: Task
) -> Outlook | None:
    """A backbone with a head, at the best of these sides, fine-tuned if there is time for that.

    sides: of the images, in pixels; None if there is no time for a head.
    """
    in_time = [
        side for side in sides if _head_seconds(tried, side / tried_side, task) <= task.seconds
    ]
    if task.is_limited and not in_time and _reached(tried, sides[-1] / tried_side, task) >= 1:
        in_time = [sides[-1]]  # with as many images as there is time for
    found = [_at_side(name, fields, tried, side / tried_side, side, task) for side in in_time]
    return min(found, key=lambda one: one.error, default=None)


def _at_side(
    name: str, fields: dict[str, Any], tried: Tried, larger: float, side: int, task: Task
) -> Outlook:
    head = _head_seconds(tried, larger, task)
    more = max(_LEAST_MORE, min(task.training, _reached(tried, larger, task)) / tried.trained)
    error = min(1.0, float(tried.error * more ** -_curve(tried) * larger**-_SIZE_EXPONENT))
    fields = {**fields, "image_size": str(side)}
    step = TRAINING_COST * tried.image_seconds * larger**2
    epochs = (task.seconds - head) / (step * task.training)
    if task.is_frozen or epochs < _LEAST_TUNING or task.training < _TUNING_IMAGES:
        frozen = {**fields, "freeze": True}
        return Outlook(f"a head on {name} at {side}x{side}", frozen, error, tried.judged)
    epochs = min(_MOST_TUNING, epochs)
    return Outlook(
        f"{name} fine-tuned at {side}x{side}",
        fields if task.is_limited else {**fields, "epochs": int(epochs)},
        error * (1 + epochs) ** -_TUNING_EXPONENT,
        tried.judged,
    )


def _head_seconds(tried: Tried, larger: float, task: Task) -> float:
    """Seconds for a head, on images whose sides are so many times those of the trial."""
    each, before = _head_costs(tried, larger, task)
    return before + task.training * each


def _reached(tried: Tried, larger: float, task: Task) -> float:
    """How many training images there is time for a head on; below 1 if there is none."""
    each, before = _head_costs(tried, larger, task)
    return (task.seconds - before) / each


def _head_costs(tried: Tried, larger: float, task: Task) -> tuple[float, float]:
    """Seconds of a head for each training image, and for all others and to begin with."""
    forward = tried.image_seconds * larger**2
    views = 1 if task.is_limited else task.views  # others are left out where time is short
    return views * (forward + task.classes * _FITTING), task.others * forward + _FITTING_START


def best_of(outlooks: list[Outlook]) -> Outlook:
    """The outlook with the fewest mistakes to expect.

    The first is what usually wins on such images, and the others come cheapest first: one must
    be clearly ahead of those before it, after trials on enough images to say so.
    """
    best, *others = outlooks
    for one in others:
        if is_clear(one, best) and min(one.judged, best.judged) >= _ENOUGH_JUDGED:
            best = one
    return best


def is_clear(better: Outlook, other: Outlook) -> bool:
    """Whether one forecast is so far ahead of another that short trials can tell."""
    return better.error < _CLEARLY * other.error


def choose(outlooks: list[Outlook], evidence: str) -> tuple[Choice[str], dict[str, Any]]:
    """The best outlook as a choice, whose reason names the others too, and its config fields."""
    best = best_of(outlooks)
    rest = [str(one) for one in outlooks if one is not best]
    reason = f"{best} in this time ({'; '.join([*rest, evidence])})"
    return Choice(best.fields["model"], reason, round(1 - best.error, 4)), best.fields


def _learning(tried: Tried) -> float:
    """The power with which mistakes fall as a net from scratch sees more images."""
    if tried.shorter is None:
        return _USUAL_LEARNING
    right, seen = tried.shorter
    fewer = error_of(right, tried.judged) / tried.error
    measured = math.log(fewer) / math.log(max(2.0, tried.seen / seen))
    mean = (measured + 2 * _USUAL_LEARNING) / 3  # mistakes fall fastest in the first moments
    return min(_FASTEST, max(_SLOWEST, mean))


def _curve(tried: Tried) -> float:
    """The power with which mistakes of a head fall as images are added."""
    if tried.half is None:
        return _USUAL_CURVE
    fewer = error_of(*tried.half) / tried.error
    measured = (math.log2(fewer) + _USUAL_CURVE) / 2  # half is one's own noise
    return min(_MOST_CURVE, max(_LEAST_CURVE, measured))
