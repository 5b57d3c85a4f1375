"""Chooses the networks to train, and which images to decode at which size."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.cache import find_cache_folder
from onsight.data.dataset import refuse_one_class
from onsight.data.sources.find import ReadOptions, find_source
from onsight.data.sources.source import Source, count_held_out, take_drawn
from onsight.errors import ConfigError
from onsight.models.file import BlendFile, find_model_file
from onsight.models.members import MOST_MEMBERS
from onsight.models.timm_nets import OFFLINE_MODEL
from onsight.step.fine_tuning import choose_fine_tuning, settle_fine_tuning
from onsight.step.optim import choose_learning_rate
from onsight.text import joined
from onsight.training.decisions import CANDIDATES
from onsight.training.job import Job
from onsight.tune.candidates import AUTO, Candidate, choose_candidates
from onsight.tune.input_size import (
    Side,
    Size,
    choose_freezing,
    choose_input_size,
    choose_shared_size,
)
from onsight.tune.training_data import choose_streaming
from onsight.tune.work import count_decodable


@dataclass(frozen=True)
class Layout:
    """What to decode, and for which networks."""

    source: Source  # images to use
    config: Config  # settings, with all that is decided by now
    # (height, width) in pixels of one network's input, or of the images that several networks
    # share.
    image_size: Size
    choices: Mapping[str, Choice[Any]]  # reasons, by config field
    # Reasons of fine-tuning settings; empty if the model is not fine-tuned.
    fine_tuning: Mapping[str, Choice[Any]]
    # Networks to train, in this order; with several, the config's model is auto.
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class _Candidates:
    """The decision which networks to train, and the size of the images that they share."""

    candidates: Annotated[tuple[Candidate, ...], Field(min_length=1, max_length=MOST_MEMBERS)]
    height: Side
    width: Side


def find_data(data: str | Source, config: Config, job: Job) -> Source:
    """Open DATA and report what it is. Raises DataError."""
    cache_folder = find_cache_folder(config.cache_folder)
    source = find_source(data, ReadOptions.from_config(config.model_dump()), cache_folder)
    refuse_one_class(source.index.classes, source.index.locators, source)
    job.reporter.say(f"data: {source.description}")
    return source


def choose_layout(source: Source, config: Config, job: Job) -> Layout:
    """Choose the networks and what to decode for them. Raises ConfigError, ModelError."""
    with job.timed("choosing a model"):
        source, config = _draw_images(source, config, job)
        network = _find_network(config)
        if config.model == AUTO and not network:
            return _lay_out_candidates(source, config, job)
        model = Choice(
            network or config.model, f"as in {config.weights}" if network else "set by you"
        )
        config = config.model_copy(update={"model": model.value})
        job.reporter.choice("model", model, is_detail=False)
        return _lay_out_network(source, config, model, job)


def _draw_images(source: Source, config: Config, job: Job) -> tuple[Source, Config]:
    """Return the source without training images that there is no time to decode.

    With a budget, the clock decides that later.
    """
    count, held_out = count_decodable(source, config), count_held_out(source)
    images = len(source.index)
    is_open = not (config.train_images or config.budget) and config.residency != "stream"
    if is_open and count + held_out < images:
        config = config.model_copy(update={"train_images": count})
        job.reporter.warn(
            f"--effort {config.effort} has time for about {count + held_out:,} of {images:,} "
            "images, drawn at random; the others are left out and listed in problems.csv"
        )
    return take_drawn(source, config.train_images, config.seed), config


def _find_network(config: Config) -> str:
    """Return the network of the run that weights come from, if the model is for Onsight to choose.

    Empty if several networks can start from them. Raises ConfigError.
    """
    file = find_model_file(config.weights) if config.weights and config.model == AUTO else None
    if isinstance(file, BlendFile):
        file = file.members.get(config.member or file.feature_member)
    if file is None or file.model == OFFLINE_MODEL:
        return ""
    if ":" in file.model:
        raise ConfigError(
            f"{config.weights} has a network of your own: name it with --model {file.model}"
        )
    return file.model


def settle_network(
    config: Config, job: Job
) -> tuple[Config, Choice[float], Mapping[str, Choice[Any]]]:
    """Return the config of one network with the settings that depend on the network alone.

    Returns:
        The config, the reason of its learning rate, and those of fine-tuning.
    """
    fine_tuning = choose_fine_tuning(config)
    config = settle_fine_tuning(config, fine_tuning)
    rate = choose_learning_rate(config)
    if not (config.freeze and config.loss == "cross-entropy"):  # a fitted head has none
        job.reporter.choice("learning_rate", rate)
    for name, choice in fine_tuning.items():
        job.reporter.choice(name, choice)
    return config.model_copy(update={"learning_rate": rate.value}), rate, fine_tuning


def _lay_out_candidates(source: Source, config: Config, job: Job) -> Layout:
    """Choose the networks of `--model auto`, and the size of the images that they share."""
    device = job.device.value
    recorded = job.decisions.recall(CANDIDATES, TypeAdapter(_Candidates))
    if recorded:  # fewer images may have been decoded since it was made
        candidates = recorded.candidates
        size = Choice((recorded.height, recorded.width), "as recorded")
    else:
        candidates = choose_candidates(source, config, device)
        size = choose_shared_size(
            source, config, [candidate.image_size for candidate in candidates]
        )
        streamed = _choose_streaming(source, config, size.value, job)
        if streamed.residency != config.residency:
            config = streamed
            candidates = choose_candidates(source, config, device)
    record = _Candidates(candidates, *size.value)
    job.decisions.decide(CANDIDATES, lambda: asdict(record), TypeAdapter(_Candidates))
    basis = ["the number and size of the images", "the kind of device"]
    basis.append("the budget" if config.budget else f"--effort {config.effort}")
    names = [candidate.name for candidate in candidates]
    model = Choice(joined(names), f"chosen by {joined(basis)}")
    job.reporter.choice("model", model, is_detail=False)
    if len(candidates) == 1:
        config = candidates[0].apply(config)
        return _lay_out_network(source, config, model, job, candidates[0])
    job.reporter.choice("image_size", size)
    choices: dict[str, Choice[Any]] = {"model": model, "image_size": size}
    return Layout(source, config, size.value, choices, {}, candidates)


def _lay_out_network(
    source: Source,
    config: Config,
    model: Choice[str],
    job: Job,
    candidate: Candidate | None = None,
) -> Layout:
    """Choose the settings and the input size of one network; a candidate has its size already."""
    device = job.device.value
    choices: dict[str, Choice[Any]] = {"model": model}
    is_open = not {"freeze", "epochs"} & config.model_fields_set
    if config.starts_from_weights and is_open:
        freezing = choose_freezing(source, config, device)
        job.reporter.choice("freeze", freezing)
        choices["freeze"] = freezing
        config = config.model_copy(update={"freeze": freezing.value})
    config, rate, fine_tuning = settle_network(config, job)
    is_size_planned = candidate is not None or job.deadline.is_set
    if candidate:
        size = Choice(candidate.image_size, explain_candidate_size(config))
    else:
        size = choose_input_size(source, config, device)
        candidate = Candidate(_shorten(config.model), {}, 1.0, size.value)
    job.reporter.choice("image_size", size)
    if is_size_planned:  # the same settings without the budget would lead to another size
        height, width = size.value
        config = config.model_copy(update={"image_size": f"{height}x{width}"})
    config = _choose_streaming(source, config, size.value, job)
    choices |= {"learning_rate": rate, "image_size": size}
    return Layout(source, config, size.value, choices, fine_tuning, (candidate,))


def explain_candidate_size(config: Config) -> str:
    """Return the reason for the input size of one of several networks."""
    return "by the size of the images and the " + ("budget" if config.budget else "effort")


def _choose_streaming(source: Source, config: Config, size: Size, job: Job) -> Config:
    """Return the config, which asks for streaming if decoded images of this size would not fit."""
    cache = find_cache_folder(config.cache_folder)
    streaming = choose_streaming(config, source, size, cache)
    if not streaming.value or config.residency != "auto":
        return config
    job.reporter.say(f"images are streamed: {streaming.reason}")
    return config.model_copy(update={"residency": "stream"})


def _shorten(model: str) -> str:
    """Return Net for package.module:Net, and resnet18 for resnet18.a1_in1k."""
    return model.rpartition(":")[2] if ":" in model else model.partition(".")[0]
