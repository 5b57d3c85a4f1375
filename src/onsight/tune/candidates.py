"""Chooses the networks that `--model auto` trains, their input sizes and shares of the time.

By a table (`tune/work.py`), in a fixed order: a head on a pretrained network, a small network from
scratch, and the pretrained network fine-tuned from that head.
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
from onsight.tune.epochs import choose_epochs
from onsight.tune.input_size import Size, choose_scratch_size, find_fitting, list_pretrained_sizes
from onsight.tune.work import (
    FEW_IMAGES,
    HEAD_FIT_SECONDS,
    MAX_HEAD_SHARE,
    MIN_TUNED_EPOCHS,
    Work,
    describe_work,
)

AUTO = "auto"  # the model that stands for all candidates
HEAD, SCRATCH, TUNED = "head", "scratch", "tuned"  # roles; from scratch, the network has a name

# Of images with more pixels, or of few, a pretrained network knows so much more than one from
# scratch that its head deserves most of a short time (NOTEBOOK.md).
_LARGE_SIDE = 96
_MAX_MINOR_HEAD_SHARE, _MIN_HEAD_SHARE = 0.4, 0.15  # of other images
_MANY_IMAGES = 5_000  # with fewer large ones, Sprint had no weight in blends (NOTEBOOK.md)
_TUNED_SHARE, _MIN_SCRATCH_SHARE = 0.4, 0.15
_MIN_COMPACT_EPOCHS = 25  # with fewer, Sprint is better
_MIN_SCRATCH_IMAGES = 200  # to train on; with fewer, a network from scratch learns too little
_FIELDS = {"model", "freeze", "pretrained"}
_UNLIMITED_SECONDS = 600.0  # for choosing pretrained networks and their inputs without a budget


def _check_name(name: str) -> str:
    if not is_member_name(name):  # it names a folder
        raise ValueError("a network cannot have this name")
    return name


def _check_fields(fields: Mapping[str, str | bool]) -> Mapping[str, str | bool]:
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
        share: Its part of the time for training; those of all candidates sum to 1.
        image_size: The (height, width) of its input.
    """

    name: Annotated[str, AfterValidator(_check_name)]
    fields: Annotated[Mapping[str, str | bool], AfterValidator(_check_fields)]
    share: Annotated[float, Field(gt=0, le=1)]
    image_size: Size

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
    source: Source, config: Config, device: torch.device, budget_seconds: float
) -> tuple[Candidate, ...]:
    """Choose what `--model auto` trains, in the order of training; what the user has set is kept.

    Args:
        budget_seconds: The whole budget; infinity for none.
    """
    work = describe_work(source, config, device, budget_seconds)
    limited = replace(work, seconds=min(work.seconds, _UNLIMITED_SECONDS))
    roles = _find_possible_roles(config, work)
    epochs = _count_tuned_epochs(config, work)
    sizes = _fit_pretrained_sizes(roles, config, limited, epochs)
    shares = _share_time(roles, sizes, limited)
    if {HEAD, SCRATCH} <= set(roles) and _is_scratch_hopeless(config, work, shares[SCRATCH]):
        roles = [role for role in (HEAD, TUNED) if role == HEAD or role in sizes]
        sizes = _fit_pretrained_sizes(roles, config, limited, epochs)
        shares = _share_time(roles, sizes, limited)
    candidates = []
    for role, share in shares.items():
        if role == SCRATCH:
            name, size = _choose_from_scratch(config, work, share * work.seconds)
            candidates.append(Candidate(name, {"model": name}, share, size))
        else:
            fields: dict[str, str | bool] = {"model": OFFLINE_MODEL, "freeze": role == HEAD}
            if not config.weights:
                fields["pretrained"] = True
            candidates.append(Candidate(role, fields, share, sizes[role]))
    return tuple(candidates)


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
        if work.training >= _MIN_SCRATCH_IMAGES or config.max_ms_per_image:
            roles.append(SCRATCH)
        roles.append(TUNED)
    if config.residency == "stream":  # there are no decoded images that networks could share
        return roles[-1:] if is_required else [SCRATCH]
    return roles or [SCRATCH]


def _count_tuned_epochs(config: Config, work: Work) -> int:
    """Return how many epochs there must be time for: the fewest that a budget leaves, or all."""
    if math.isfinite(work.seconds):
        return MIN_TUNED_EPOCHS
    return choose_epochs(config.model_copy(update={"pretrained": True}), work.training).value


def _fit_pretrained_sizes(
    roles: list[str], config: Config, work: Work, epochs: int
) -> dict[str, Size]:
    """Return the largest input of each pretrained role that fits into its share of the time.

    A role without one is left out, unless nothing else would be left. Fine-tuning on images of less
    than half the side would be worse than the head.
    """
    sizes = [config.size] if config.size else list_pretrained_sizes(work.side)
    fitted: dict[str, Size] = {}
    is_alone = len(roles) == 1
    for role, seconds_at, share in (
        (HEAD, work.head_seconds, MAX_HEAD_SHARE if is_alone else _limit_head_share(work)),
        (TUNED, partial(work.tuned_seconds, epochs=epochs), 1.0 if is_alone else _TUNED_SHARE),
    ):
        if role not in roles:
            continue
        size = find_fitting(sizes, seconds_at, share * work.seconds)
        if size is None and SCRATCH not in roles and role == roles[0]:
            size = sizes[-1]
        if size:
            fitted[role] = size
            sizes = [smaller for smaller in sizes if 2 * smaller[0] >= size[0]]
    return fitted


def _share_time(roles: list[str], sizes: Mapping[str, Size], work: Work) -> dict[str, float]:
    """Return the share of each role that has an input; from scratch gets what others leave."""
    parts = {role: _TUNED_SHARE for role in roles if role == SCRATCH or role in sizes}
    if HEAD in parts:
        seconds = work.head_seconds(sizes[HEAD], work.views) + HEAD_FIT_SECONDS
        seconds += work.hidden_seconds()
        share = seconds / work.seconds
        parts[HEAD] = min(_limit_head_share(work), max(_MIN_HEAD_SHARE, share))
    if SCRATCH in parts:
        others = sum(part for role, part in parts.items() if role != SCRATCH)
        parts[SCRATCH] = max(_MIN_SCRATCH_SHARE, 1.0 - others)
    whole = sum(parts.values())
    return {role: part / whole for role, part in parts.items()}


def _is_scratch_hopeless(config: Config, work: Work, share: float) -> bool:
    """Return whether a head is so much better that a network from scratch only takes its time.

    Not if the time per image is limited: a small network may be the only one that is fast enough.
    """
    if config.max_ms_per_image:
        return False
    is_few_large = work.side > _LARGE_SIDE and work.training < _MANY_IMAGES
    return is_few_large and _choose_from_scratch(config, work, share * work.seconds)[0] != "compact"


def _limit_head_share(work: Work) -> float:
    is_essential = work.side > _LARGE_SIDE or work.training <= FEW_IMAGES
    return MAX_HEAD_SHARE if is_essential else _MAX_MINOR_HEAD_SHARE


def _choose_from_scratch(config: Config, work: Work, seconds: float) -> tuple[str, Size]:
    """Choose Compact if there is time for enough epochs, else Sprint, and the size of its input."""
    size = config.size or choose_scratch_size(work, "compact", seconds)
    if work.scratch_seconds("compact", size, _MIN_COMPACT_EPOCHS) <= seconds:
        return "compact", size
    return "sprint", config.size or choose_scratch_size(work, "sprint", seconds)
