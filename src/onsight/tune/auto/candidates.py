"""The models that `--model auto` may choose from, each with its trial and its outlook."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from onsight.config import Config
from onsight.models.timm_nets import is_cached, offline_models, timm_facts
from onsight.step.optim import choose_learning_rate
from onsight.tune.auto.outlook import Outlook, Task, pretrained_outlook, scratch_outlook
from onsight.tune.auto.trials import Sample, Tried, try_head, try_training

SCRATCH = "sprint"
SIDES = (224, 192, 160, 128, 96)  # pixels, tried from the largest

_FEWEST_JUDGED = 10  # images: with fewer, nothing speaks for a net from scratch
_LARGER = ("resnet50", "convnext_tiny")  # backbones for accelerators, with weights on the Hub


@dataclass(frozen=True)
class Candidate:
    """A model that may be trained. is_pretrained: whether a head on published weights is tried.

    attempt: tries it on a sample for some seconds; outlook: what to expect after such a trial,
    None if nothing can be said.
    """

    name: str
    is_pretrained: bool
    attempt: Callable[[float], Tried]
    outlook: Callable[[Tried, Task], Outlook | None]


def backbones(device: torch.device, may_download: bool) -> list[str]:
    """Networks whose weights are here, cheapest first.

    On an accelerator also larger ones, if earlier downloads left their weights here or they may
    be downloaded.
    """
    found = offline_models()
    if device.type == "cpu":
        return found
    return [*found, *(name for name in _LARGER if may_download or _has_weights_here(name))]


def from_scratch(
    config: Config, sample: Sample, size: tuple[int, int], device: torch.device
) -> Candidate:
    """The net without weights, at a (height, width) in pixels."""
    fields = {"model": SCRATCH}
    tried_as = _settled(config, {**fields, "image_size": "x".join(str(side) for side in size)})

    def outlook(tried: Tried, task: Task) -> Outlook | None:
        if tried.judged < _FEWEST_JUDGED:
            return None
        return scratch_outlook(SCRATCH, fields, tried, task)

    return Candidate(
        SCRATCH, False, lambda seconds: try_training(tried_as, sample, device, seconds), outlook
    )


def pretrained(
    name: str, config: Config, sample: Sample, side: int, sides: list[int], device: torch.device
) -> Candidate:
    """A backbone with published weights, tried at a side in pixels, that could run at others."""
    fields: dict[str, Any] = {"model": name, "pretrained": True}
    tried_as = _settled(config, {**fields, "image_size": config.image_size})
    if not config.size:
        tried_as = tried_as.model_copy(update={"image_size": str(side)})
    return Candidate(
        name,
        True,
        lambda seconds: try_head(tried_as, sample, device, seconds),
        lambda tried, task: pretrained_outlook(name, fields, tried, side, sides, task),
    )


def _settled(config: Config, fields: dict[str, Any]) -> Config:
    config = config.model_copy(update=fields)
    return config.model_copy(update={"learning_rate": choose_learning_rate(config).value})


def _has_weights_here(name: str) -> bool:
    facts = timm_facts(name)
    return bool(facts and facts.hf_hub_id and is_cached(facts.hf_hub_id))
