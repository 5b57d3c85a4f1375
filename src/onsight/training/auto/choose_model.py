"""Which model is best in the time there is: short trials on a sample, before all is decoded."""

import json
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.cache import find_cache_folder
from onsight.data.dataset import USUAL_SIZE, choose_size
from onsight.data.index import TEST, TRAIN, UNSPLIT, VALIDATION
from onsight.data.sources.source import Source
from onsight.errors import ConfigError, DataError, ModelError
from onsight.evaluation.metrics import share
from onsight.models.pretrained import OFFLINE_MODEL, offline_hint, offline_models
from onsight.report.console import Reporter
from onsight.training.auto.kept_choice import choice_file, keep_choice, read_choice
from onsight.training.auto.outlook import (
    SIDES,
    Task,
    choose,
    head_outlooks,
    scratch_outlook,
)
from onsight.training.auto.sample import Sample, draw_sample
from onsight.training.auto.trials import Tried, try_head, try_training
from onsight.training.budget import Budget
from onsight.training.pictures.fit_pictures import pictures_in_time
from onsight.training.ranks.world import World
from onsight.training.step.deferred_losses import NonFiniteStepError
from onsight.training.step.optim import choose_learning_rate
from onsight.words import fixed_percent

AUTO = "auto"
_SCRATCH = "compact"
_TRIED_SIDE = 128  # pixels, of a pretrained backbone's trial
_TRIAL_SHARE = 0.5  # of a budget's seconds for trials; the plan needs some too
_SAMPLE_SHARE, _HEAD_SHARE, _NET_SHARE = 0.3, 0.3, 0.25  # of the seconds for choosing
_LEAST_SECONDS, _MOST_SECONDS = 2.0, 8.0  # for choosing, without a budget
_FEWEST_JUDGED = 10  # pictures: with fewer, nothing speaks for a net from scratch
_EPOCHS = 10  # from scratch, whose time a run without a budget may take
_LEAST_RUN_SECONDS = 20.0


def settle_model(
    config: Config,
    source: Source,
    device: torch.device,
    threads: int,
    reporter: Reporter,
    world: World,
    budget: Budget | None,
) -> tuple[Choice[str], Config]:
    """The model with its reason, and the config with it; the first rank tries and decides.

    What is asked for in the config stays as it is.
    """
    if config.model != AUTO:
        return Choice(config.model, "as asked"), config

    def decide() -> str:
        with budget.trying() if budget else nullcontext():
            choice, fields = choose_model(config, source, device, threads, reporter, budget)
        return json.dumps([choice.value, choice.reason, choice.figure, fields])

    value, reason, figure, fields = json.loads(world.broadcast("model", decide))
    if budget:
        budget.look()
    choice = Choice(value, reason, figure)
    reporter.choice("model", choice)
    asked = config.model_fields_set - {"model"}
    fields = {name: one for name, one in fields.items() if name not in asked}
    return choice, config.model_copy(update=fields)


def from_scratch(config: Config) -> Config:
    """The config with the net from scratch where the model is open, for timing training steps."""
    return config.model_copy(update={"model": _SCRATCH}) if config.model == AUTO else config


def choose_model(
    config: Config,
    source: Source,
    device: torch.device,
    threads: int,
    reporter: Reporter,
    budget: Budget | None,
) -> tuple[Choice[str], dict[str, Any]]:
    """The model, with the reason, and the config fields that go with it.

    Takes a part of the budget's time for trials, or else a few seconds; without a budget, the
    choice is kept, so that the same run gets the same model again.
    """
    names = offline_models()
    if config.freeze or config.starts_from_weights:
        published = {} if config.weights else {"pretrained": True}
        reason = "its weights need no network"
        return Choice(OFFLINE_MODEL, reason), {"model": OFFLINE_MODEL, **published}
    if config.loss != "cross-entropy":
        return Choice(_SCRATCH, "heads are fitted with cross-entropy only"), {"model": _SCRATCH}
    if not names:
        reason = f"no pretrained weights are here: {offline_hint()}"
        return Choice(_SCRATCH, reason), {"model": _SCRATCH}
    folder = None if budget else find_cache_folder(config.cache_folder)
    path = choice_file(folder, source, config, device) if folder else None
    kept = read_choice(path) if path and config.plan == "auto" else None
    if kept:
        return kept
    begun = time.perf_counter()
    try:
        chosen = _by_trials(names[0], config, source, device, threads, budget)
    except (ConfigError, DataError, ModelError, NonFiniteStepError) as error:
        return Choice(_SCRATCH, f"not tried: {error}"), {"model": _SCRATCH}
    reporter.say(f"model: trials took {time.perf_counter() - begun:.1f} s")
    if path:
        keep_choice(path, chosen)
    return chosen


def _by_trials(
    name: str,
    config: Config,
    source: Source,
    device: torch.device,
    threads: int,
    budget: Budget | None,
) -> tuple[Choice[str], dict[str, Any]]:
    own = choose_size(source, config.size, None).value
    is_small = own != USUAL_SIZE and config.size is None
    side = SIDES[-1] if is_small else _TRIED_SIDE
    scratch = _settled(config, {"model": _SCRATCH, "image_size": _size_text(own)})
    pretrained = {"model": name, "pretrained": True}
    head = _settled(
        config, {**pretrained, "image_size": config.image_size if config.size else str(side)}
    )
    seconds = _seconds(config, source, budget)
    packed = own if is_small or config.size else (side, side)
    sample = draw_sample(source, config, packed, threads, _SAMPLE_SHARE * seconds)
    by_net = try_training(scratch, sample, device, _NET_SHARE * seconds)
    by_head = try_head(head, sample, device, _HEAD_SHARE * seconds)
    task = _task(config, source, sample, by_net, budget)
    sides = [max(config.size)] if config.size else _sides(is_small)
    tried_side = max(config.size) if config.size else side
    outlooks = head_outlooks(name, pretrained, by_head, tried_side, sides, task)
    evidence = (
        f"tried: {_shown(by_head)} by a head on {by_head.trained:,} pictures at {tried_side} px"
    )
    if by_net.judged >= _FEWEST_JUDGED:
        by_scratch = scratch_outlook(_SCRATCH, {"model": _SCRATCH}, by_net, task)
        outlooks = [by_scratch, *outlooks] if is_small else [*outlooks, by_scratch]
        evidence += f", {_shown(by_net)} after {by_net.seen:,} pictures from scratch"
    return choose(outlooks, evidence)


def _settled(config: Config, fields: dict[str, Any]) -> Config:
    config = config.model_copy(update=fields)
    return config.model_copy(update={"learning_rate": choose_learning_rate(config).value})


def _seconds(config: Config, source: Source, budget: Budget | None) -> float:
    """For choosing: of a budget's seconds for trials, or in proportion to the pictures."""
    if budget:
        return _TRIAL_SHARE * budget.trial_seconds
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, len(source.index) / 3000))


def _task(
    config: Config, source: Source, sample: Sample, by_net: Tried, budget: Budget | None
) -> Task:
    splits = source.index.splits
    given = {split: int((splits == split).sum()) for split in (TEST, VALIDATION)}
    free = int(np.isin(splits, (UNSPLIT, TRAIN)).sum())
    test = given[TEST] or round(config.test_fraction * free)
    validation = given[VALIDATION] or round(config.validation_fraction * free)
    training = free - (0 if given[TEST] else test) - (0 if given[VALIDATION] else validation)
    if budget:
        budget.peek()
        held_out = given[TEST] + given[VALIDATION]
        decoded = pictures_in_time(budget, sample.decode_seconds, held_out, free)
        training = min(training, decoded)
        seconds = budget.left_seconds - (decoded + held_out) * sample.decode_seconds
    else:
        seconds = _EPOCHS * training * by_net.picture_seconds
    return Task(
        max(1, training),
        2 * validation + test,
        max(1.0 if budget else _LEAST_RUN_SECONDS, seconds),
        len(source.index.classes),
        2 if config.flip else 1,
        budget is not None,
    )


def _sides(is_small: bool) -> list[int]:
    """Sides worth trying: pictures that are small stay small."""
    return [SIDES[-1]] if is_small else list(SIDES)


def _size_text(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _shown(tried: Tried) -> str:
    found = share("right", tried.right, tried.judged)
    low, high = found["right_low"] or 0.0, found["right_high"] or 0.0
    return (
        f"{fixed_percent(found['right'])} ({100 * low:.0f} to {100 * high:.0f}, "
        f"n = {tried.judged:,})"
    )
