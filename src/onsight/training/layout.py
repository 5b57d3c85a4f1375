"""Chooses the model, and which images to decode at which size."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.cache import find_cache_folder
from onsight.data.dataset import USUAL_SIZE, choose_size
from onsight.data.sources.find import ReadOptions, find_source
from onsight.data.sources.source import Source
from onsight.errors import BudgetTooSmall
from onsight.models.catalog import preferred_size
from onsight.step.fine_tuning import choose_fine_tuning, settle_fine_tuning
from onsight.step.optim import choose_learning_rate
from onsight.training.job import Job
from onsight.tune.auto.choose_model import lighter_model, settle_model
from onsight.tune.fit_images import MOST_DECODING, fit_images, take_images
from onsight.tune.fit_size import Undecoded, fit_to_budget
from onsight.tune.pace import Pace
from onsight.tune.training_data import choose_streaming


@dataclass(frozen=True)
class Layout:
    """What to decode, and for which model.

    Args:
        source: The images to use.
        config: The settings, with all that is decided by now.
        image_size: (height, width) of the model's input in pixels.
        choices: The reasons, by config field.
        fine_tuning: The reasons of fine-tuning settings; empty if the model is not fine-tuned.
        pace: What was measured before decoding, if there is a budget.
        decoding_fraction: How much of the time left decoding may take; later images are left out.
    """

    source: Source
    config: Config
    image_size: tuple[int, int]
    choices: Mapping[str, Choice[Any]]
    fine_tuning: Mapping[str, Choice[Any]]
    pace: Pace | None = None
    decoding_fraction: float = math.inf


def find_data(data: str | Source, config: Config, job: Job) -> Source:
    """Open DATA and report what it is. Raises DataError."""
    cache_folder = find_cache_folder(config.cache_folder)
    source = find_source(data, ReadOptions.from_config(config.model_dump()), cache_folder)
    job.reporter.say(f"data: {source.description}")
    return source


def choose_layout(source: Source, config: Config, module: nn.Module | None, job: Job) -> Layout:
    """Choose the model and what to decode for it. Raises ConfigError, BudgetTooSmall."""
    with job.timed("choosing a model"):
        model, chosen = settle_model(
            config, source, job.device.value, job.threads.value, job.reporter, job.world, job.budget
        )
    try:
        return _choose_for_model(source, chosen, model, module, job)
    except BudgetTooSmall as error:
        lighter = lighter_model(config, model) if job.world.size == 1 else None
        if lighter is None:
            raise
        model, chosen = lighter
        job.reporter.warn(f"{error}: {model.value} is trained from scratch instead")
        return _choose_for_model(source, chosen, model, module, job)


def _choose_for_model(
    source: Source, config: Config, model: Choice[str], module: nn.Module | None, job: Job
) -> Layout:
    with job.timed("decode"):
        fine_tuning = choose_fine_tuning(config)
        config = settle_fine_tuning(config, fine_tuning)
        cache = find_cache_folder(config.cache_folder)
        given_images = config.train_images
        if job.budget and not job.is_planned:
            config = fit_images(
                job.budget, source, config, job.threads.value, cache, job.reporter, job.world
            )
        is_drawn = config.train_images != given_images and job.world.size == 1
        source = take_images(source, config)
        rate = choose_learning_rate(config)
        if not (config.freeze and config.loss == "cross-entropy"):  # a fitted head has none
            job.reporter.choice("learning_rate", rate)
        for name, choice in fine_tuning.items():
            job.reporter.choice(name, choice)
        config = config.model_copy(update={"learning_rate": rate.value})
        image_size, pace = _choose_size(source, config, module, is_drawn, job)
        job.reporter.choice("image_size", image_size)
        streaming = choose_streaming(config, source, image_size.value, cache)
        if streaming.value and config.residency == "auto":
            job.reporter.say(f"images are streamed: {streaming.reason}")
            config = config.model_copy(update={"residency": "stream"})
    choices: dict[str, Choice[Any]] = {
        "model": model,
        "learning_rate": rate,
        "image_size": image_size,
    }
    fraction = MOST_DECODING if is_drawn else math.inf
    return Layout(source, config, image_size.value, choices, fine_tuning, pace, fraction)


def _choose_size(
    source: Source, config: Config, module: nn.Module | None, is_drawn: bool, job: Job
) -> tuple[Choice[tuple[int, int]], Pace | None]:
    """Return the size of the model's input, and how fast this machine is if that was measured."""
    preferred = preferred_size(config.model, config.weights, config.member)
    image_size = choose_size(source, config.size, preferred)
    if not job.budget or job.is_planned:
        return image_size, None
    cache = find_cache_folder(config.cache_folder)
    undecoded = Undecoded(
        source, config, job.device.value, job.threads.value, cache, module, is_drawn
    )
    is_open = not (config.size or preferred) and image_size.value == USUAL_SIZE
    return fit_to_budget(job.budget, undecoded, image_size, is_open, job.world)
