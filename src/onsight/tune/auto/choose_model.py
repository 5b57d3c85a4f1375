"""Which model is best in the time there is: short trials on a sample, before all is decoded."""

import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.cache import (
    cached_json_path,
    find_cache_folder,
    read_cached_json,
    write_cached_json,
)
from onsight.data.dataset import USUAL_SIZE, choose_size
from onsight.data.index import TEST, TRAIN, UNSPLIT, VALIDATION
from onsight.data.sources.source import Source, count_held_out
from onsight.errors import ConfigError, DataError, ModelError
from onsight.hardware.devices import describe_device
from onsight.models.timm_nets import OFFLINE_MODEL, offline_hint, offline_models
from onsight.ranks.world import World
from onsight.report.console import Reporter
from onsight.step.deferred_losses import NonFiniteStepError
from onsight.tune.auto.backbone_pace import least_forward_seconds
from onsight.tune.auto.candidates import (
    SCRATCH,
    SIDES,
    Candidate,
    backbones,
    from_scratch,
    pretrained,
)
from onsight.tune.auto.outlook import TRAINING_COST, Task, choose
from onsight.tune.auto.race import Race, more_time, run_race
from onsight.tune.auto.trials import Sample, Tried, draw_sample
from onsight.tune.budget import Budget
from onsight.tune.fit_images import images_in_time
from onsight.tune.pace import time_decoding

AUTO = "auto"
_TRIED_SIDE = 128  # pixels, of a pretrained backbone's trial
_TRIAL_SHARE = 0.5  # of a budget's seconds for trials; the plan needs some too
_SAMPLE_SHARE = 0.3  # of the seconds for choosing, for decoding images
_LEAST_SECONDS, _MOST_SECONDS = 2.0, 8.0  # for choosing, without a budget
_MOST_HELD_OUT = 0.25  # of the time left, for images held out: with more there are no trials
_TIMING_SECONDS = 0.5
_EPOCHS = 10  # from scratch, whose time a run without a budget may take
_LEAST_RUN_SECONDS = 20.0
_MORE_TIME = 5  # times as much, of which a run says what it would bring


Chosen = tuple[Choice[str], dict[str, Any]]  # the model, and the config fields that go with it


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
        return Choice(config.model, "set by you"), config

    def decide() -> str:
        with budget.trying() if budget else nullcontext():
            choice, fields = choose_model(config, source, device, threads, reporter, budget)
        return json.dumps([choice.value, choice.reason, choice.figure, fields])

    value, reason, figure, fields = json.loads(world.broadcast("model", decide))
    if budget:
        budget.read_clock()
    choice = Choice(value, reason, figure)
    reporter.choice("model", choice)
    asked = config.model_fields_set - {"model"}
    fields = {name: one for name, one in fields.items() if name not in asked}
    return choice, config.model_copy(update=fields)


def lighter_model(config: Config, chosen: Choice[str]) -> tuple[Choice[str], Config] | None:
    """The net from scratch, if the model was open and there is too little time for the chosen one.

    config: as asked.
    """
    if config.model != AUTO or chosen.value == SCRATCH or _from_weights(config):
        return None
    choice, fields = _as_it_is(SCRATCH, f"there is too little time for {chosen.value}")
    return choice, config.model_copy(update=fields)


def with_net_from_scratch(config: Config) -> Config:
    """The config with the net from scratch where the model is open, for timing training steps."""
    return config.model_copy(update={"model": SCRATCH}) if config.model == AUTO else config


def choose_model(
    config: Config,
    source: Source,
    device: torch.device,
    threads: int,
    reporter: Reporter,
    budget: Budget | None,
) -> Chosen:
    """The model, with the reason, and the config fields that go with it.

    Takes a part of the budget's time for trials, or else a few seconds; without a budget, the
    choice is kept, so that the same run gets the same model again.
    """
    names = backbones(device, config.pretrained)
    known = _without_trials(config, names)
    if known:
        return known
    folder = None if budget else find_cache_folder(config.cache_folder)
    path = choice_path(folder, source, config, device) if folder else None
    kept = read_choice(path) if path and config.plan == "auto" else None
    if kept:
        return kept
    begun = time.perf_counter()
    try:
        race = _try_models(names, config, source, device, threads, budget)
        if not race.outlooks:
            raise DataError("the trials say too little")
        chosen = choose(race.outlooks, "; ".join([race.evidence, *more_time(race, _MORE_TIME)]))
    except (ConfigError, DataError, ModelError, NonFiniteStepError) as error:
        name = names[0] if _from_weights(config) else SCRATCH
        return _as_it_is(name, f"not tried: {error}")
    reporter.say(f"model: compared candidates in {time.perf_counter() - begun:.1f} s")
    if path:
        write_choice(path, chosen)
    return chosen


def _without_trials(config: Config, names: list[str]) -> Chosen | None:
    """The model where there is nothing to try; None otherwise. names: of the backbones here."""
    if config.weights:
        return Choice(OFFLINE_MODEL, "as its weights are given"), {"model": OFFLINE_MODEL}
    if _from_weights(config):
        if names and config.loss == "cross-entropy":
            return None
        return _as_it_is(OFFLINE_MODEL, "its weights need no network")
    if config.loss != "cross-entropy":
        return _as_it_is(SCRATCH, "heads are fitted with cross-entropy only")
    if not names:
        return _as_it_is(SCRATCH, f"no pretrained weights are here: {offline_hint()}")
    return None


def _from_weights(config: Config) -> bool:
    return config.freeze or config.pretrained


def _as_it_is(name: str, reason: str) -> Chosen:
    published = {} if name == SCRATCH else {"pretrained": True}
    return Choice(name, reason), {"model": name, **published}


def _try_models(
    names: list[str],
    config: Config,
    source: Source,
    device: torch.device,
    threads: int,
    budget: Budget | None,
) -> Race:
    own = choose_size(source, config.size, None).value
    if budget:
        _leave_time(budget, source, config, own, device, threads)
    is_small = own != USUAL_SIZE and config.size is None
    side = max(config.size) if config.size else SIDES[-1] if is_small else _TRIED_SIDE
    sides = [side] if config.size or is_small else list(SIDES)
    seconds = _seconds(config, source, budget)
    packed = own if is_small or config.size else (side, side)
    sample = draw_sample(source, config, packed, threads, _SAMPLE_SHARE * seconds)
    heads = [pretrained(name, config, sample, side, sides, device) for name in names]
    first = heads[:1]
    if not _from_weights(config):
        net = from_scratch(config, sample, own, device)
        first = [net, *first] if is_small else [*first, net]

    def task_of(trials: Sequence[tuple[Candidate, Tried]]) -> Task:
        image_seconds = next(
            (tried.image_seconds for one, tried in trials if not one.is_pretrained),
            TRAINING_COST * trials[0][1].image_seconds,
        )
        return _task(config, source, sample, image_seconds, budget)

    return run_race(first, heads[1:], (1 - _SAMPLE_SHARE) * seconds, task_of)


def _leave_time(
    budget: Budget,
    source: Source,
    config: Config,
    size: tuple[int, int],
    device: torch.device,
    threads: int,
) -> None:
    """Raise DataError where little time is left for training beside the images held out.

    Trials would take much of it, and a pretrained network could judge these, but not learn.
    """
    given = count_held_out(source)
    _, validation, test = _parts(config, source)
    each = time_decoding(source, config, size, _TIMING_SECONDS) / threads if given else 0.0
    judging = least_forward_seconds(threads) if device.type == "cpu" else 0.0
    seconds = given * each + (validation + test) * judging
    budget.read_own_clock()
    if seconds > _MOST_HELD_OUT * budget.left_seconds:
        raise DataError(
            f"the {validation + test:,} images held out take about {seconds:.0f} of the "
            f"{budget.left_seconds:.0f} s left, to be decoded and judged by a pretrained network"
        )


def _seconds(config: Config, source: Source, budget: Budget | None) -> float:
    """For choosing: of a budget's seconds for trials, or in proportion to the images."""
    if budget:
        return _TRIAL_SHARE * budget.trial_seconds
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, len(source.index) / 3000))


def _task(
    config: Config, source: Source, sample: Sample, image_seconds: float, budget: Budget | None
) -> Task:
    """image_seconds: of a training step for each image."""
    training, validation, test = _parts(config, source)
    if budget:
        budget.read_own_clock()
        held_out = count_held_out(source)
        free = len(source.index) - held_out
        decoded = images_in_time(budget, sample.decode_seconds, held_out, free)
        training = min(training, decoded)
        seconds = budget.left_seconds - (decoded + held_out) * sample.decode_seconds
    else:
        seconds = _EPOCHS * training * image_seconds
    return Task(
        max(1, training),
        2 * validation + test,
        max(1.0 if budget else _LEAST_RUN_SECONDS, seconds),
        len(source.index.classes),
        2 if config.flip else 1,
        budget is not None,
        config.freeze,
    )


def _parts(config: Config, source: Source) -> tuple[int, int, int]:
    """How many images there will be to train on, to validate and to test, about."""
    splits = source.index.splits
    given = {split: int((splits == split).sum()) for split in (TEST, VALIDATION)}
    free = int(np.isin(splits, (UNSPLIT, TRAIN)).sum())
    test = given[TEST] or round(config.test_fraction * free)
    validation = given[VALIDATION] or round(config.validation_fraction * free)
    training = free - (0 if given[TEST] else test) - (0 if given[VALIDATION] else validation)
    return training, validation, test


_VERSION = 2  # increased when models are tried or chosen differently


def choice_path(folder: Path, source: Source, config: Config, device: torch.device) -> Path:
    """Return where the choice of such a run is cached."""
    key = [
        source.kind,
        source.fingerprint,
        config.model_dump(mode="json", exclude={"cache_folder", "plan"}),
        describe_device(device),
        torch.__version__,
        offline_models(),
    ]
    return cached_json_path(folder, "models", _VERSION, key)


def read_choice(path: Path) -> Chosen | None:
    """Return a cached choice, or None if there is none or it cannot be read."""
    return read_cached_json(path, _parse_choice)


def write_choice(path: Path, chosen: Chosen) -> None:
    """Cache a choice for later runs, if the disk allows it."""
    choice, fields = chosen
    write_cached_json(path, {"model": choice.value, "reason": choice.reason, "fields": fields})


def _parse_choice(facts: Any) -> Chosen:
    reason = f"kept from an earlier run: {facts['reason']}"
    return Choice(facts["model"], reason), facts["fields"]
