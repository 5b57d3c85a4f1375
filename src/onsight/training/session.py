"""A run in this process: the one place that turns a config into objects."""

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from onsight.choice import Choice
from onsight.config import Config, save_config
from onsight.data.cache import cache_folder
from onsight.data.dataset import Dataset
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.loader import Batch, Loader
from onsight.evaluation.outcome import BATCH_SIZE
from onsight.files import write_json
from onsight.hardware.devices import describe_device
from onsight.hardware.environment import describe_environment
from onsight.hardware.usage import seconds_since_start
from onsight.models.classifier import Classifier
from onsight.models.file import save_model
from onsight.report.console import Story
from onsight.report.tables import write_problems
from onsight.training.allot import allot_epochs
from onsight.training.budget import Budget, read_budget
from onsight.training.build import make_augmentation, make_net, make_step
from onsight.training.ema import MovingAverage
from onsight.training.finish import finish, make_model_file
from onsight.training.folder import CONFIG, RunFolder
from onsight.training.material import Material, place
from onsight.training.opening import open_data
from onsight.training.placed import naming_misplaced
from onsight.training.plan import Plan, choose_learning_rate, choose_residency, save_plan
from onsight.training.planning import apply_way, choose_way, plain_plan
from onsight.training.signals import stop_on_signals
from onsight.training.trainer import Trainer
from onsight.training.ways import WAY, plain_way
from onsight.training.workload import expected_seconds
from onsight.training.world import World

_RANKS_NOT_MEASURED = "not measured: several ranks would have to measure alike"


class Session:
    """What a run needs from its start to its end; `run` does it all.

    plan: the device and threads of this rank, to which every other choice is added; spent: tells
    the seconds that a budget has lost so far.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        folder: RunFolder,
        story: Story,
        world: World,
        spent: Callable[[], float],
    ) -> None:
        self.plan = plan
        self.device: torch.device = plan["device"].value
        self.folder = folder
        self.story = story
        self.world = world
        self.phases = {"start": seconds_since_start()}
        plan["learning_rate"] = choose_learning_rate(config)
        self.config = config.model_copy(update={"learning_rate": plan["learning_rate"].value})
        self.budget = Budget(read_budget(config.budget), spent) if config.budget else None

    def run(self, data: str, module: nn.Module | None, resume: bool) -> dict[str, Any]:
        """Train on DATA and judge; the results, which are empty at all ranks but the first."""
        self.story.say(f"{describe_device(self.device)}; torch {torch.__version__}")
        for name in ("device", "learning_rate"):
            self.story.choice(name, self.plan[name])
        found, dataset = self._open(data)
        material = self._place(dataset, module)
        data_key = _data_key(dataset)
        provenance = {
            "data": data,
            "found": found,
            "data_key": data_key,
            "config": self.config.model_dump(),
            "versions": describe_environment(self.device)["versions"],
        }
        with stop_on_signals(self.world.stop):
            with naming_misplaced(material, self.config):
                trainer = self._make_trainer(material, provenance)
            if resume:
                trainer.resume()
            progress = trainer.run()
        self.phases["training"] = progress.training_seconds
        self.phases["validation"] = progress.validation_seconds
        results = finish(
            self.config,
            dataset,
            trainer.classifier,
            progress,
            self.folder,
            phases=self.phases,
            provenance=provenance,
            world=self.world,
        )
        if module is not None:  # with a moving average, the judged weights are those of a copy
            module.load_state_dict(trainer.classifier.net.state_dict())
        return results

    def _open(self, data: str) -> tuple[str, Dataset]:
        """What DATA is, and its pictures, the same at every rank."""
        with self.world.one_by_machine("pictures"), self._timed("decode"):
            found, self.config, dataset = open_data(
                data, self.config, self.plan, self.story, self.budget, self._save_config
            )
        self.world.agree("pictures", _data_key(dataset))
        self.world.agree("room for pictures (--residency settles it)", self.config.residency)
        return found, dataset

    def _save_config(self, config: Config) -> None:
        """Before long work, so that --resume finds it."""
        if self.world.is_first:
            save_config(config, self.folder.path / CONFIG)

    def _place(self, dataset: Dataset, module: nn.Module | None) -> Material:
        """Put the pictures in place and settle how each step is computed."""
        plan, config = self.plan, self.config
        plan["pictures"] = choose_residency(
            dataset.pictures, self.device, config.residency, self.world.size
        )
        self.story.choice("pictures", plan["pictures"])
        plan["ranks"] = self._choose_ranks(dataset)
        material = place(config, plan, dataset, module)
        with self._timed("plan"), naming_misplaced(material, config):
            plan |= self._choose_way(material)
            self.config = apply_way(config, plan)
            torch.set_num_threads(self.config.threads)
            if self.budget:
                self.config = allot_epochs(self.budget, self.config, material, self.story)
        self._save_config(self.config)  # now with nothing left to choose
        if self.world.is_first:
            save_plan(plan, self.folder.path / "plan.json")
            write_json(self.folder.path / "environment.json", describe_environment(self.device))
            write_problems(self.folder.path / "problems.csv", dataset.problems)
        return material

    def _choose_way(self, material: Material) -> Plan:
        """How each step is computed, told with its reasons."""
        config = self.config
        if self.world.size > 1:
            plain = plain_way(config, self.device, self.plan["threads"].value)
            way = plain_plan(config, plain, _RANKS_NOT_MEASURED)
        else:
            kept = cache_folder(config.cache_folder, config.cache)
            seconds = self._expected_seconds(material)
            way = choose_way(config, material, seconds, kept, self.story)
        for name in WAY:
            self.story.choice(name, way[name])
        return way

    def _expected_seconds(self, material: Material) -> float:
        """How long training takes, roughly."""
        if self.budget:
            return self.budget.left_seconds
        config, dataset = self.config, material.dataset
        count = len(dataset.ids(TRAIN))
        return expected_seconds(
            material.draft(config),
            dataset.input_shape,
            config.epochs * count,
            config.epochs * math.ceil(count / config.batch_size),
            self.device,
        )

    def _choose_ranks(self, dataset: Dataset) -> Choice[int]:
        """How many ranks there are; each says where it is and what it has of a first batch."""
        world, size = self.world, self.config.batch_size
        if world.size == 1:
            return Choice(1, "one process")
        ids, cpu = dataset.ids(TRAIN), torch.device("cpu")
        loader = Loader(dataset.pictures, ids, size, cpu, world.rank, world.size)
        batch = next(loader.epoch(self.config.seed, 0))
        share = f"{len(batch.labels)} of the {len(batch.whole)} pictures of a batch"
        told = world.told("share", f"{share}, on {self.device}")
        shares = [f"rank {rank}: {line}" for rank, line in enumerate(told)]
        for line in shares:
            self.story.say(line)
        return Choice(world.size, "; ".join(shares))

    def _make_trainer(self, material: Material, provenance: dict[str, Any]) -> Trainer:
        config, dataset, device, world = self.config, material.dataset, self.device, self.world
        net = make_net(config, dataset, device, material.module)
        average = MovingAverage(net, config.ema) if config.ema else None
        judged = average.model if average else net
        classifier = Classifier(judged, material.normalization, config.precision, device)
        augmentation = make_augmentation(config, dataset)
        step = make_step(config, net, dataset, config.precision, device, world)
        step.told_halved = self._keep_parts

        def keep_epoch(epoch: int, row: dict[str, Any]) -> None:
            if config.keep_epochs:
                file = make_model_file(config, dataset, classifier, {"epoch": row}, provenance)
                save_model(self.folder.epoch_file(epoch), file)

        def make_loader(split: int, batch_size: int, with_next: bool = False) -> Loader:
            ids, ranks = dataset.ids(split), (world.rank, world.size)
            return Loader(material.pictures, ids, batch_size, device, *ranks, with_next)

        watched = {"validation": VALIDATION, **({"test": TEST} if config.test_each_epoch else {})}
        return Trainer(
            config,
            step,
            average,
            classifier,
            augmentation,
            make_loader(TRAIN, config.batch_size, augmentation.mixes),
            {name: make_loader(split, BATCH_SIZE) for name, split in watched.items()},
            name_pictures=lambda batch: _name_pictures(batch, dataset),
            keep_epoch=keep_epoch,
            classes=len(dataset.classes),
            folder=self.folder,
            data_key=provenance["data_key"],
            story=self.story,
            budget=self.budget,
        )

    def _keep_parts(self, parts: int) -> None:
        """Memory ran out: say and keep that batches are computed in more parts from now on."""
        self.plan["accumulate"] = Choice(parts, "memory ran out with fewer, during training")
        self.story.warn(
            f"out of memory: each batch is now computed in {parts} parts, with the same update "
            "(but batch norm sees the parts); start with --accumulate to have it so from the first"
        )
        self._save_config(self.config.model_copy(update={"accumulate": parts}))
        save_plan(self.plan, self.folder.path / "plan.json")

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.phases[phase] = time.perf_counter() - begun


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
