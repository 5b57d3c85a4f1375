"""What to expect of each model in the time there is, from its short trial."""

import math
from dataclasses import dataclass
from typing import Any

from onsight.choice import Choice
from onsight.evaluation.intervals import wilson
from onsight.training.auto.trials import Tried
from onsight.words import percent

# Rules of thumb from runs of 10 s to 300 s on four kinds of pictures (NOTEBOOK.md).
_NEW_EXPONENT = 0.4  # mistakes of a net from scratch fall with the different pictures seen
_AGAIN_EXPONENT = 0.35  # and with how often each is seen, to these powers
_MOST_AGAIN = 10.0  # times as often: more does not help
_SIZE_EXPONENT = 0.5  # mistakes of a pretrained backbone fall with the side of the picture
_LEAST_CURVE, _MOST_CURVE, _USUAL_CURVE = 0.1, 0.55, 0.3  # and with the pictures, as measured
_CLEARLY = 0.8  # times the mistakes: forecasts from short trials are no better than that
_TUNING_GAIN = 0.85  # mistakes left after fine-tuning the head's network
_TUNING_EPOCHS = 2.0  # with fewer there is no gain
_TUNING_PICTURES = 200  # with fewer, validation cannot tell whether there is one
_TRAINING_COST = 3.3  # a training step over a forward pass, pictures equal

_FITTING, _FITTING_START = 3e-5, 3.0  # seconds to fit a head: for a picture and class, and at all

SIDES = (224, 192, 160, 128, 96)  # pixels, tried from the largest


@dataclass(frozen=True)
class Task:
    """How much there is to do: pictures to train on, all others to evaluate, seconds for both.

    views: of each picture for a head; is_limited: whether a head may do with fewer pictures if
    there is no time for all.
    """

    training: int
    others: int
    seconds: float
    classes: int
    views: int
    is_limited: bool


@dataclass(frozen=True)
class Outlook:
    """A model that could be made: the config fields for it, and the mistakes to expect."""

    name: str
    fields: dict[str, Any]
    error: float

    def __str__(self) -> str:
        return f"{self.name}: about {percent(1 - self.error)}"


def scratch_outlook(name: str, fields: dict[str, Any], tried: Tried, task: Task) -> Outlook:
    """A net from scratch, trained for the whole time."""
    seen = max(tried.seen, task.seconds / tried.picture_seconds)
    different = min(seen, max(tried.trained, task.training))
    again = (seen / different) / (tried.seen / tried.trained)
    error = tried.error * (different / tried.trained) ** -_NEW_EXPONENT
    return Outlook(
        f"{name} from scratch",
        fields,
        error * min(_MOST_AGAIN, max(1.0, again)) ** -_AGAIN_EXPONENT,
    )


def head_outlooks(
    name: str, fields: dict[str, Any], tried: Tried, tried_side: int, sides: list[int], task: Task
) -> list[Outlook]:
    """A head on the frozen backbone and, where time allows, fine-tuning from that head.

    sides: of the pictures, in pixels, largest first.
    """

    def head_seconds(side: int) -> float:
        forward = tried.picture_seconds * (side / tried_side) ** 2
        each = task.views * task.training
        return each * (forward + task.classes * _FITTING) + task.others * forward + _FITTING_START

    def epochs(side: int) -> float:
        step = _TRAINING_COST * tried.picture_seconds * (side / tried_side) ** 2
        return max(0.0, task.seconds - head_seconds(side)) / (step * task.training)

    def error(side: int) -> float:
        reached = min(1.0, task.seconds / head_seconds(side)) * task.training
        more = max(1.0, reached / tried.trained)
        larger = side / tried_side
        return float(tried.error * more ** -_curve(tried) * larger**-_SIZE_EXPONENT)

    fitting = [one for one in sides if head_seconds(one) <= task.seconds]
    if not fitting and not task.is_limited:
        return []
    frozen = fitting[0] if fitting else sides[-1]
    found = [
        Outlook(
            f"a head on {name} at {frozen}x{frozen}",
            {**fields, "freeze": True, "image_size": str(frozen)},
            error(frozen),
        )
    ]
    tuned = next((one for one in sides if epochs(one) >= _TUNING_EPOCHS), None)
    if tuned and task.training >= _TUNING_PICTURES:
        found.append(
            Outlook(
                f"{name} fine-tuned at {tuned}x{tuned}",
                {**fields, "image_size": str(tuned), "epochs": max(1, int(epochs(tuned)))},
                error(tuned) * _TUNING_GAIN,
            )
        )
    return found


def choose(outlooks: list[Outlook], evidence: str) -> tuple[Choice[str], dict[str, Any]]:
    """The model with the fewest mistakes to expect, with the reason.

    The first is what usually wins on such pictures: another must be clearly ahead.
    """
    usual, *others = outlooks
    ahead = [one for one in others if one.error < _CLEARLY * usual.error]
    best = min(ahead, key=lambda one: one.error) if ahead else usual
    rest = [str(one) for one in outlooks if one is not best]
    reason = f"{best} right in this time ({'; '.join([*rest, evidence])})"
    return Choice(best.fields["model"], reason, round(1 - best.error, 4)), best.fields


def _curve(tried: Tried) -> float:
    """The power with which mistakes fall as pictures are added."""
    if tried.half is None:
        return _USUAL_CURVE
    right, judged = tried.half
    half_error = wilson(judged - right, judged, z=1.0)[1]
    measured = (math.log2(half_error / tried.error) + _USUAL_CURVE) / 2  # half is one's own noise
    return min(_MOST_CURVE, max(_LEAST_CURVE, measured))
