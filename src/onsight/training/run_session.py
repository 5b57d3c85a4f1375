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
from onsight.data.cache import find_cache_folder
from onsight.data.dataset import Dataset
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.loader import Batch, Loader
from onsight.evaluation.per_image import BATCH_SIZE
from onsight.files import write_json
from onsight.hardware.devices import describe_device
from onsight.hardware.environment import describe_environment
from onsight.hardware.usage import seconds_since_start
from onsight.models.classifier import Classifier
from onsight.models.file import save_model
from onsight.report.console import Reporter
from onsight.report.tables import write_problems
from onsight.training.autotune.compute_options import COMPUTE_FIELDS, default_options
from onsight.training.autotune.planning import apply_compute, choose_compute, unmeasured_plan
from onsight.training.autotune.workload import expected_seconds
from onsight.training.budget.budget import Budget, read_budget
from onsight.training.budget.fit_budget import fit_epochs
from onsight.training.build import make_augmentation, make_net, make_step
from onsight.training.finish import finish, make_model_file
from onsight.training.open_data import open_data
from onsight.training.plan import Plan, choose_learning_rate, choose_residency, save_plan
from onsight.training.prepare import PreparedRun, place
from onsight.training.ranks.signals import stop_on_signals
from onsight.training.ranks.world import World
from onsight.training.run_folder.folder import CONFIG, RunFolder
from onsight.training.run_folder.placement_check import naming_misplaced
from onsight.training.step.ema import MovingAverage
from onsight.training.trainer import Trainer

_RANKS_NOT_MEASURED = "not measured: several ranks would have to measure alike"


class RunSession:
    """What a run needs from its start to its end; `run` does it all.

    plan: the device and threads of this rank, to which every other choice is added; spent: tells
    the seconds that a budget has lost so far.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        folder: RunFolder,
        reporter: Reporter,
        world: World,
        spent: Callable[[], float],
    ) -> None:
        self.plan = plan
        self.device: torch.device = plan["device"].value
        self.folder = folder
        self.reporter = reporter
        self.world = world
        self.phases = {"start": seconds_since_start()}
        plan["learning_rate"] = choose_learning_rate(config)
        self.config = config.model_copy(update={"learning_rate": plan["learning_rate"].value})
        self.budget = Budget(read_budget(config.budget), spent) if config.budget else None

    def run(self, data: str, module: nn.Module | None, resume: bool) -> dict[str, Any]:
        """Train on DATA and judge; the results, which are empty at all ranks but the first."""
        self.reporter.say(f"{describe_device(self.device)}; torch {torch.__version__}")
        for name in ("device", "learning_rate"):
            self.reporter.choice(name, self.plan[name])
        found, dataset = self._open(data)
        prepared = self._place(dataset, module)
        data_key = _data_key(dataset)
        provenance = {
            "data": data,
            "found": found,
            "data_key": data_key,
            "config": self.config.model_dump(),
            "versions": describe_environment(self.device)["versions"],
        }
        with stop_on_signals(self.world.stop):
            with naming_misplaced(prepared, self.config):
                trainer = self._make_trainer(prepared, provenance)
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
        with self.world.local_first("pictures"), self._timed("decode"):
            found, self.config, dataset = open_data(
                data, self.config, self.plan, self.reporter, self.budget, self._save_config
            )
        self.world.check_equal("pictures", _data_key(dataset))
        self.world.check_equal("room for pictures (--residency settles it)", self.config.residency)
        return found, dataset

    def _save_config(self, config: Config) -> None:
        """Before long work, so that --resume finds it."""
        if self.world.is_main:
            save_config(config, self.folder.path / CONFIG)

    def _place(self, dataset: Dataset, module: nn.Module | None) -> PreparedRun:
        """Put the pictures in place and settle how each step is computed."""
        plan, config = self.plan, self.config
        plan["pictures"] = choose_residency(
            dataset.pictures, self.device, config.residency, self.world.size
        )
        self.reporter.choice("pictures", plan["pictures"])
        plan["ranks"] = self._choose_ranks(dataset)
        prepared = place(config, plan, dataset, module)
        with self._timed("plan"), naming_misplaced(prepared, config):
            plan |= self._choose_compute(prepared)
            self.config = apply_compute(config, plan)
            torch.set_num_threads(self.config.threads)
            if self.budget:
                self.config = fit_epochs(self.budget, self.config, prepared, self.reporter)
        self._save_config(self.config)  # now with nothing left to choose
        if self.world.is_main:
            save_plan(plan, self.folder.path / "plan.json")
            write_json(self.folder.path / "environment.json", describe_environment(self.device))
            write_problems(self.folder.path / "problems.csv", dataset.problems)
        return prepared

    def _choose_compute(self, prepared: PreparedRun) -> Plan:
        """How each step is computed, lines with its reasons."""
        config = self.config
        if self.world.size > 1:
            plain = default_options(config, self.device, self.plan["threads"].value)
            options = unmeasured_plan(config, plain, _RANKS_NOT_MEASURED)
        else:
            kept = find_cache_folder(config.cache_folder)
            seconds = self._expected_seconds(prepared)
            options = choose_compute(config, prepared, seconds, kept, self.reporter)
        for name in COMPUTE_FIELDS:
            self.reporter.choice(name, options[name])
        return options

    def _expected_seconds(self, prepared: PreparedRun) -> float:
        """How long training takes, roughly."""
        if self.budget:
            return self.budget.left_seconds
        config, dataset = self.config, prepared.dataset
        count = len(dataset.ids(TRAIN))
        return expected_seconds(
            prepared.draft(config),
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
        share = f"{len(batch.labels)} of the {len(batch.global_labels)} pictures of a batch"
        lines = world.gather("share", f"{share}, on {self.device}")
        shares = [f"rank {rank}: {line}" for rank, line in enumerate(lines)]
        for line in shares:
            self.reporter.say(line)
        return Choice(world.size, "; ".join(shares))

    def _make_trainer(self, prepared: PreparedRun, provenance: dict[str, Any]) -> Trainer:
        config, dataset, device, world = self.config, prepared.dataset, self.device, self.world
        net = make_net(config, dataset, device, prepared.module)
        average = MovingAverage(net, config.ema) if config.ema else None
        judged = average.model if average else net
        classifier = Classifier(judged, prepared.normalization, config.precision, device)
        augmentation = make_augmentation(config, dataset)
        step = make_step(config, net, dataset, config.precision, device, world)
        step.on_halved = self._keep_parts

        def keep_epoch(epoch: int, row: dict[str, Any]) -> None:
            if config.keep_epochs:
                file = make_model_file(config, dataset, classifier, {"epoch": row}, provenance)
                save_model(self.folder.epoch_file(epoch), file)

        def make_loader(split: int, batch_size: int, with_next: bool = False) -> Loader:
            ids, ranks = dataset.ids(split), (world.rank, world.size)
            return Loader(prepared.pictures, ids, batch_size, device, *ranks, with_next)

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
            reporter=self.reporter,
            budget=self.budget,
        )

    def _keep_parts(self, parts: int) -> None:
        """Memory ran out: say and keep that batches are computed in more parts from now on."""
        self.plan["accumulate"] = Choice(parts, "memory ran out with fewer, during training")
        self.reporter.warn(
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
