"""A run: the one place that turns a config into objects."""

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from onsight.choice import Choice
from onsight.config import Config, config_layers, make_config, read_config_file, save_config
from onsight.data.cache import cache_folder
from onsight.data.dataset import (
    Dataset,
    choose_size,
    open_dataset,
    problem_summary,
    split_sentence,
)
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.loader import Batch, Loader
from onsight.data.sources.find import find_source
from onsight.data.sources.source import Source
from onsight.errors import ConfigError, OutputError
from onsight.evaluation.outcome import BATCH_SIZE
from onsight.files import write_json
from onsight.hardware.devices import choose_devices, describe_device
from onsight.hardware.environment import describe_environment
from onsight.hardware.reproducible import reproducible
from onsight.hardware.usage import seconds_since_start
from onsight.models.catalog import preferred_size
from onsight.models.classifier import Classifier
from onsight.models.file import save_model
from onsight.report.console import Silence, Story
from onsight.report.tables import write_problems
from onsight.training.build import (
    make_augmentation,
    make_net,
    make_normalization,
    make_step,
    place_pictures,
)
from onsight.training.ema import MovingAverage
from onsight.training.finish import finish, make_model_file
from onsight.training.folder import (
    CONFIG,
    RunFolder,
    claim_folder,
    next_run_folder,
    refuse_inside_data,
    share_folder,
)
from onsight.training.launch import launch
from onsight.training.plan import (
    Plan,
    choose_learning_rate,
    choose_precision,
    choose_residency,
    choose_threads,
    save_plan,
)
from onsight.training.seat import Seat, find_seat
from onsight.training.signals import stop_on_signals
from onsight.training.trainer import Trainer
from onsight.training.world import World, join

# What may differ when a run goes on: where it computes and keeps things, not what it does.
_FREE_ON_RESUME = {"device", "ranks", "threads", "cache", "cache_folder"}


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its results as in results.json, and this process's rank."""

    path: Path
    results: dict[str, Any]
    rank: int = 0

    @property
    def accuracy(self) -> float | None:
        """The share of held-out pictures that were classified right."""
        value: float | None = self.results["accuracy"]
        return value

    @property
    def model(self) -> Path:
        """The model file."""
        return self.path / "model.safetensors"

    @property
    def report(self) -> Path:
        """The report, one HTML file."""
        return self.path / "report.html"


def train(
    data: str | Path,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    recipe: str | None = None,
    config_file: str | Path | None = None,
    story: Story | None = None,
    **fields: Any,
) -> Run:
    """Train a classifier on pictures; every field of the config is a keyword.

    `model` may also be a torch.nn.Module, which is then trained itself. Raises UserError
    for what the user can mend, Interrupted after a signal, NonFiniteLoss, DiskError.
    """
    module = fields.get("model")
    if isinstance(module, nn.Module):
        fields["model"] = f"{type(module).__module__}:{type(module).__qualname__}"
    else:
        module = None
    seat = find_seat()
    path = Path(out).expanduser() if out else None
    config = _resolve_config(path if resume else None, recipe, config_file, fields)
    devices = choose_devices(config.device, _local_ranks(seat, config))
    if seat is None and len(devices.value) > 1:
        given = {"recipe": recipe, "config_file": config_file and str(config_file), **fields}
        path = path or next_run_folder(str(data))
        return _launch_ranks(str(data), path, resume, given, len(devices.value), module)
    threads = choose_threads(config.threads, seat.local_size if seat else 1)
    device = Choice(devices.value[seat.local_rank if seat else 0], devices.reason)
    plan: Plan = {"device": device, "threads": threads}
    with reproducible(threads.value):
        world = join(seat, device.value)
        with world.membership():
            chosen = world.from_first("folder", lambda: str(path or next_run_folder(str(data))))
            refuse_inside_data(Path(chosen), str(data))
            story = (story or Story()) if world.is_first else Silence()
            with _claimed(Path(chosen), resume, world) as folder:
                results = _run(str(data), config, plan, folder, story, module, resume, world)
    return Run(folder.path, results or read_results(folder.path), world.rank)


def _local_ranks(seat: Seat | None, config: Config) -> int:
    """Ranks on this machine: those that a launcher started, else what the config asks for."""
    return seat.local_size if seat else config.ranks


def _launch_ranks(
    data: str,
    path: Path,
    resume: bool,
    given: dict[str, Any],
    ranks: int,
    module: nn.Module | None,
) -> Run:
    """Let so many processes train with what was given; each calls train again, with a seat."""
    refuse_inside_data(path, data)
    if module is not None:
        raise ConfigError(
            "a network in memory cannot be sent to other processes: name it as "
            "package.module:callable, or start your script by torchrun"
        )
    launch({"data": data, "out": str(path), "resume": resume, **given}, ranks, path)
    return Run(path, read_results(path))


def read_results(run: Path) -> dict[str, Any]:
    """The results of a finished run folder."""
    results: dict[str, Any] = json.loads((run / "results.json").read_text(encoding="utf-8"))
    return results


def _run(
    data: str,
    config: Config,
    plan: Plan,
    folder: RunFolder,
    story: Story,
    module: nn.Module | None,
    resume: bool,
    world: World,
) -> dict[str, Any]:
    phases = {"start": seconds_since_start()}
    device = plan["device"].value
    plan["precision"] = choose_precision(config.precision, device)
    plan["learning_rate"] = choose_learning_rate(config)
    config = config.model_copy(update={"learning_rate": plan["learning_rate"].value})
    story.say(f"{describe_device(device)}; torch {torch.__version__}")
    for name in ("device", "threads", "precision", "learning_rate"):
        story.choice(name, plan[name])
    with world.one_by_machine("pictures"):
        source = find_source(data, config.layout, cache_folder(config.cache_folder, config.cache))
        story.say(f"data: {source.found}")
        if world.is_first:
            save_config(config, folder.path / CONFIG)  # before the long work, for --resume
        with _timed(phases, "decode"):
            dataset = _make_dataset(source, config, plan, story)
    data_key = _data_key(dataset)
    world.agree("pictures", data_key)
    _tell_data(dataset, story)
    plan["pictures"] = choose_residency(dataset.pictures, device)
    plan["ranks"] = _choose_ranks(world, dataset, config, device, story)
    if world.is_first:
        _write_start(folder, plan, dataset, device)
    provenance = {
        "data": data,
        "found": source.found,
        "data_key": data_key,
        "config": config.model_dump(),
        "versions": describe_environment(device)["versions"],
    }
    with stop_on_signals(world.stop):
        trainer = _make_trainer(config, plan, dataset, folder, story, module, provenance, world)
        if resume:
            trainer.resume()
        progress = trainer.run()
    phases |= {"training": progress.training_seconds, "validation": progress.validation_seconds}
    results = finish(
        config,
        dataset,
        trainer.classifier,
        progress,
        folder,
        phases=phases,
        provenance=provenance,
        world=world,
    )
    if module is not None:  # with a moving average, the judged weights are those of a copy
        module.load_state_dict(trainer.classifier.net.state_dict())
    return results


def _resolve_config(
    resumed: Path | None,
    recipe: str | None,
    config_file: str | Path | None,
    fields: dict[str, Any],
) -> Config:
    """Flags over file over recipe over defaults; a resumed run keeps its own."""
    layers = config_layers(recipe, config_file, fields)
    asked = make_config(*layers)
    if resumed is None:
        return asked
    if not (resumed / CONFIG).exists():
        raise OutputError(f"nothing to resume: {resumed} holds no run")
    saved = make_config(read_config_file(resumed / CONFIG))
    named = {name for layer in layers for name in layer} - _FREE_ON_RESUME
    changed = sorted(n for n in named if getattr(asked, n) != getattr(saved, n))
    if changed:
        raise ConfigError(
            f"a resumed run keeps its settings, but {', '.join(changed)} would change; "
            "leave that out, or start a new run"
        )
    free = {name: getattr(asked, name) for layer in layers for name in layer if name not in named}
    return make_config(saved.model_dump(), free)


@contextmanager
def _claimed(path: Path, resume: bool, world: World) -> Iterator[RunFolder]:
    folder = claim_folder(path, resume) if world.is_first else None
    world.from_first("claim", str)
    folder = folder or share_folder(path)
    try:
        yield folder
    finally:
        folder.release()


@contextmanager
def _timed(phases: dict[str, float], name: str) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    phases[name] = time.perf_counter() - begun


def _make_dataset(source: Source, config: Config, plan: Plan, story: Story) -> Dataset:
    plan["image_size"] = choose_size(source, config.size, preferred_size(config.model))
    story.choice("image_size", plan["image_size"])
    with story.bar("decode", len(source.index)) as bar:
        return open_dataset(
            source,
            config,
            plan["image_size"].value,
            cache_folder(config.cache_folder, config.cache),
            plan["threads"].value,
            bar.advance,
        )


def _tell_data(dataset: Dataset, story: Story) -> None:
    source = "reopened from the cache" if dataset.pack.was_cached else "decoded"
    shape = "x".join(str(side) for side in dataset.pictures.shape)
    story.say(f"pictures: {split_sentence(dataset)} ({source}, {shape})")
    for reason, count in problem_summary(dataset.problems):
        story.warn(f"{count:,} not used: {reason}")
    for note in dataset.notes:
        story.warn(note)


def _write_start(folder: RunFolder, plan: Plan, dataset: Dataset, device: torch.device) -> None:
    save_plan(plan, folder.path / "plan.json")
    write_json(folder.path / "environment.json", describe_environment(device))
    write_problems(folder.path / "problems.csv", dataset.problems)


def _make_trainer(
    config: Config,
    plan: Plan,
    dataset: Dataset,
    folder: RunFolder,
    story: Story,
    module: nn.Module | None,
    provenance: dict[str, Any],
    world: World,
) -> Trainer:
    device, precision = plan["device"].value, plan["precision"].value
    pictures = place_pictures(dataset, plan)
    normalization = make_normalization(config, pictures, dataset)
    net = make_net(config, dataset, device, module)
    average = MovingAverage(net, config.ema) if config.ema else None
    classifier = Classifier(average.model if average else net, normalization, precision, device)
    augmentation = make_augmentation(config)
    place = {"device": device, "rank": world.rank, "ranks": world.size}
    watched = {"validation": VALIDATION, **({"test": TEST} if config.test_each_epoch else {})}

    def keep_epoch(epoch: int, row: dict[str, Any]) -> None:
        if config.keep_epochs:
            file = make_model_file(config, dataset, classifier, {"epoch": row}, provenance)
            save_model(folder.epoch_file(epoch), file)

    return Trainer(
        config,
        make_step(config, net, dataset, precision, device, world),
        average,
        classifier,
        augmentation,
        Loader(
            pictures,
            dataset.ids(TRAIN),
            config.batch_size,
            with_next=augmentation.mixes,
            **place,
        ),
        {
            name: Loader(pictures, dataset.ids(split), BATCH_SIZE, **place)
            for name, split in watched.items()
        },
        name_pictures=lambda batch: _name_pictures(batch, dataset),
        keep_epoch=keep_epoch,
        classes=len(dataset.classes),
        folder=folder,
        data_key=provenance["data_key"],
        story=story,
    )


def _choose_ranks(
    world: World, dataset: Dataset, config: Config, device: torch.device, story: Story
) -> Choice[int]:
    """How many ranks there are; each says where it is and what it has of a first batch."""
    if world.size == 1:
        return Choice(1, "one process")
    ids, cpu = dataset.ids(TRAIN), torch.device("cpu")
    loader = Loader(dataset.pictures, ids, config.batch_size, cpu, world.rank, world.size)
    batch = next(loader.epoch(config.seed, 0))
    share = f"{len(batch.labels)} of the {len(batch.whole)} pictures of a batch, on {device}"
    shares = [f"rank {rank}: {told}" for rank, told in enumerate(world.told("share", share))]
    for line in shares:
        story.say(line)
    return Choice(world.size, "; ".join(shares))


def _name_pictures(batch: Batch, dataset: Dataset, most: int = 8) -> str:
    ids = batch.ids.tolist()
    names = [dataset.pack.index.locators[number] for number in ids[:most]]
    return ", ".join(names) + (f" and {len(ids) - most} more" if len(ids) > most else "")


def _data_key(dataset: Dataset) -> str:
    """A digest of the pictures, their labels and their split."""
    digest = hashlib.sha256("\n".join(dataset.classes).encode("utf-8", "surrogateescape"))
    for column in (dataset.pack.digests, dataset.pack.index.labels, dataset.splits):
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()
