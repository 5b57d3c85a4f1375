"""Chooses the networks that `--model auto` trains, their input sizes and parts of the time.

By a table (`tune/work.py`): a head on a pretrained network, a small network from scratch, and the
pretrained network fine-tuned from that head.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
from pydantic import AfterValidator, Field

from onsight.config import Config
from onsight.data.sources.source import Source
from onsight.models.members import is_member_name
from onsight.models.timm_nets import OFFLINE_MODEL, offline_models
from onsight.text import joined
from onsight.tune.epochs import most_epochs
from onsight.tune.input_size import (
    LARGER_SIZES,
    LARGEST_SIDE,
    Size,
    choose_scratch_size,
    find_fitting,
    list_pretrained_sizes,
)
from onsight.tune.work import (
    FEW_IMAGES,
    LEAST_HEAD_FRACTION,
    MAX_HEAD_SHARE,
    Work,
    describe_work,
)

AUTO = "auto"  # the model that stands for all candidates
HEAD, SCRATCH, TUNED = "head", "scratch", "tuned"  # roles; from scratch, the network has a name

# Of images with more pixels, or of few, a pretrained network knows so much more than one from
# scratch that its head deserves most of a short time (NOTEBOOK.md).
_LARGE_SIDE = 96
# At most, of other images: of up to so many, and of more, which teach another network more.
_MINOR_HEAD_SHARE, _SOME_IMAGES, _LEAST_HEAD_SHARE = 0.4, 10_000, 0.25
_MANY_IMAGES = 5_000  # with fewer large ones, Sprint had no weight in blends (NOTEBOOK.md)
_TUNED_SHARE, _MINOR_SCRATCH_SHARE = 0.4, 0.25  # the latter of few large images
# On a slower machine or beside other work, features take longer. What a head leaves over goes to
# the candidates after it.
_HEAD_MARGIN = 1.5
_SPLIT_MARGIN = 1.1  # images are split by digest, so a few more than planned may be for training
_MIN_COMPACT_EPOCHS = 25  # with fewer, Sprint is better
# To train on: with fewer, a network from scratch learns too little, and validation cannot tell
# whether fine-tuning helps.
_MIN_IMAGES = 200
_FIELDS = {"model", "freeze", "pretrained", "head_images"}
_Value = str | bool | int


def _check_name(name: str) -> str:
    if not is_member_name(name):  # it names a folder
        raise ValueError("a network cannot have this name")
    return name


def _check_fields(fields: Mapping[str, _Value]) -> Mapping[str, _Value]:
    if not fields.keys() <= _FIELDS:
        raise ValueError(f"only {joined(sorted(_FIELDS))} differ between networks")
    if ":" in str(fields.get("model")):
        raise ValueError("code named by a file is not run")
    return fields


@dataclass(frozen=True)
class Candidate:
    """A network to train, in a part of the run's time.

    Attributes:
        name: What it is called, such as head, sprint, compact or tuned.
        fields: Config fields that make it differ from the run's config.
        share: Its part of the time for training; those of all candidates sum to at most 1.
        image_size: The (height, width) of its input.
        epochs: How many there is time for; 0 if that is not known.
        seconds: About how long it takes on two quiet cores; 0 if that is not known.
    """

    name: Annotated[str, AfterValidator(_check_name)]
    fields: Annotated[Mapping[str, _Value], AfterValidator(_check_fields)]
    share: Annotated[float, Field(gt=0, le=1)]
    image_size: Size
    epochs: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0

    @property
    def is_head(self) -> bool:
        """Whether only a head is fitted, on a frozen network."""
        return bool(self.fields.get("freeze"))

    @property
    def is_from_scratch(self) -> bool:
        """Whether all layers start from random weights."""
        return "freeze" not in self.fields

    def apply(self, config: Config) -> Config:
        """Return the config of this network; fields that the user has set stay."""
        asked = config.model_fields_set - {"model"}
        fields = {name: value for name, value in self.fields.items() if name not in asked}
        return config.model_copy(update=fields)


def choose_candidates(
    source: Source, config: Config, device: torch.device
) -> tuple[Candidate, ...]:
    """Choose what `--model auto` trains, in this order; what the user has set is kept."""
    work = describe_work(source, config, device)
    roles = _find_possible_roles(config, work)
    head = _plan_head(config, work, roles) if HEAD in roles else None
    left = 1.0 - head.share if head else 1.0
    if head and work.side > _LARGE_SIDE and work.training < _MANY_IMAGES:
        others = _plan_others_of_few_large(config, work, roles, head, left)
    else:
        tuned_share = _TUNED_SHARE * left if SCRATCH in roles else left
        tuned = _plan_tuned(config, work, tuned_share, head, roles) if TUNED in roles else None
        scratch = None
        if SCRATCH in roles:
            scratch = _plan_scratch(config, work, left - tuned.share if tuned else left)
        others = [scratch, tuned]
    chosen = tuple(candidate for candidate in (head, *others) if candidate)
    return (replace(chosen[0], share=1.0),) if len(chosen) == 1 else chosen


def _plan_others_of_few_large(
    config: Config, work: Work, roles: list[str], head: Candidate, left: float
) -> list[Candidate | None]:
    """Plan what adds to a head that knows far more about the images than they can teach.

    Fine-tuning gets time first, and a network from scratch a quarter of all the time at most.
    """
    limit = min(left, _MINOR_SCRATCH_SHARE) if SCRATCH in roles else 0.0
    tuned = _plan_tuned(config, work, left - limit, head, roles) if TUNED in roles else None
    scratch = _plan_scratch(config, work, limit) if limit else None
    # A small network may be the only one that is fast enough for a limit on the time per image.
    if scratch and scratch.name != "compact" and not config.max_ms_per_image:
        scratch = None
    return [tuned, scratch]


def name_one_network(config: Config) -> Config:
    """Return the config with Sprint instead of several networks, for timing training steps."""
    return config.model_copy(update={"model": "sprint"}) if config.model == AUTO else config


def _find_possible_roles(config: Config, work: Work) -> list[str]:
    """Return the roles that the settings and the number of images leave, in order of training."""
    asked = config.model_fields_set
    is_required = config.freeze or config.starts_from_weights  # that a network is pretrained
    may_start_trained = "pretrained" not in asked and OFFLINE_MODEL in offline_models()
    is_fitted = config.loss == "cross-entropy"  # a head
    roles = []
    if is_required:
        if config.freeze or (is_fitted and "freeze" not in asked):
            roles.append(HEAD)
        if not config.freeze:
            roles.append(TUNED)
    elif may_start_trained and is_fitted:
        if "freeze" not in asked:
            roles.append(HEAD)
        is_enough = work.training >= _MIN_IMAGES
        if is_enough or config.max_ms_per_image:
            roles.append(SCRATCH)
        if is_enough:
            roles.append(TUNED)
    if config.residency == "stream":  # there are no decoded images that networks could share
        return roles[-1:] if is_required else [SCRATCH]
    return roles or [SCRATCH]


def _plan_head(config: Config, work: Work, roles: list[str]) -> Candidate | None:
    """Plan a head on the largest input for which there is time.

    If there is time for a third of the images at least, it is fitted on these; with fewer, only if
    no network from scratch can take its place. What is left of the time after all images and their
    mirror images goes into an input that is larger than the network was made for.
    """
    limit = MAX_HEAD_SHARE if len(roles) == 1 else _limit_head_share(work)
    seconds = limit * work.seconds
    sizes = _list_sizes(config, work)
    larger = [] if config.size else [size for size in LARGER_SIZES if size[0] <= work.large_side]
    size = (
        find_fitting(larger, partial(work.head_seconds, fitted=work.views * work.shown), seconds)
        or find_fitting(sizes, work.head_seconds, seconds)
        or sizes[-1]
    )
    fitted = work.count_fitted(size, seconds)
    if fitted < LEAST_HEAD_FRACTION * work.shown:
        if SCRATCH in roles:
            return None
        fitted = max(1, round(LEAST_HEAD_FRACTION * work.shown))
    head_seconds = work.head_seconds(size, fitted)
    share = min(limit, _HEAD_MARGIN * head_seconds / work.seconds)
    head_images = math.ceil(_SPLIT_MARGIN * fitted) if fitted >= work.shown else fitted
    fields = {"freeze": True, "head_images": head_images, **_name_pretrained(config)}
    return Candidate(HEAD, fields, share, size, seconds=head_seconds)


def _plan_tuned(
    config: Config, work: Work, share: float, head: Candidate | None, roles: list[str]
) -> Candidate | None:
    """Plan to fine-tune on the largest input with time for the fewest epochs worth it, if any.

    With less than half the side of the head's input, or half of 224 pixels, it would be worse than
    the head.
    """
    seconds = share * work.seconds
    least_side = min(head.image_size[0], LARGEST_SIDE) / 2 if head else 0
    sizes = [size for size in _list_sizes(config, work) if size[0] >= least_side]
    size = find_fitting(sizes, work.tuned_seconds, seconds)
    if size is None:
        if len(roles) > 1:
            return None
        size = sizes[-1]
    epochs = _count_epochs(work.tuned_seconds(size, 1), seconds, most_epochs(config, True))
    fields = {"freeze": False, **_name_pretrained(config)}
    return Candidate(TUNED, fields, share, size, epochs, work.tuned_seconds(size, epochs))


def _plan_scratch(config: Config, work: Work, share: float) -> Candidate:
    seconds = share * work.seconds
    name, size = _choose_from_scratch(config, work, seconds)
    epochs = _count_epochs(work.scratch_seconds(name, size, 1), seconds, most_epochs(config, False))
    expected_seconds = work.scratch_seconds(name, size, epochs)
    return Candidate(name, {"model": name}, share, size, epochs, expected_seconds)


def _count_epochs(epoch_seconds: float, seconds: float, most: int) -> int:
    return max(1, min(most, int(seconds / epoch_seconds)))


def _name_pretrained(config: Config) -> dict[str, _Value]:
    return {"model": OFFLINE_MODEL, **({} if config.weights else {"pretrained": True})}


def _list_sizes(config: Config, work: Work) -> list[Size]:
    return [config.size] if config.size else list_pretrained_sizes(work.side)


def _limit_head_share(work: Work) -> float:
    if work.side > _LARGE_SIDE or work.training <= FEW_IMAGES:
        return MAX_HEAD_SHARE
    return _MINOR_HEAD_SHARE if work.training <= _SOME_IMAGES else _LEAST_HEAD_SHARE


def _choose_from_scratch(config: Config, work: Work, seconds: float) -> tuple[str, Size]:
    """Choose Compact if there is time for enough epochs, else Sprint, and the size of its input."""
    size = config.size or choose_scratch_size(work, "compact", seconds)
    if work.scratch_seconds("compact", size, _MIN_COMPACT_EPOCHS) <= seconds:
        return "compact", size
    return "sprint", config.size or choose_scratch_size(work, "sprint", seconds)
