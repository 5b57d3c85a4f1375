"""A run in this process: prepare, train, evaluate."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from onsight.choice import Choice
from onsight.config import Config, Switch, save_config
from onsight.data.dataset import Dataset
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.loader import Batch, Loader
from onsight.evaluation.per_image import BATCH_SIZE
from onsight.evaluation.results import EpochRow, Results
from onsight.files import write_json
from onsight.hardware.environment import describe_environment, package_versions
from onsight.hardware.usage import seconds_since_start
from onsight.models.classifier import Classifier
from onsight.models.file import save_model
from onsight.report.console import Reporter
from onsight.report.tables import write_problems
from onsight.training.autotune.adapt import adaptation
from onsight.training.budget import Budget, read_budget
from onsight.training.build import make_net, make_update
from onsight.training.finish import finish, make_model_file
from onsight.training.prepare import PreparedRun, prepare
from onsight.training.ranks.signals import stop_on_signals
from onsight.training.ranks.world import World
from onsight.training.run_folder.folder import CONFIG, RunFolder
from onsight.training.run_folder.placement_check import naming_misplaced
from onsight.training.trainer import Trainer
from onsight.words import listed


class RunSession:
    """What a run needs from start to finish; `run` does the work."""

    def __init__(self, folder: RunFolder, reporter: Reporter, world: World) -> None:
        self.folder = folder
        self.reporter = reporter
        self.world = world
        self.phases = {"start": seconds_since_start()}

    def run(
        self,
        data: str,
        config: Config,
        device: Choice[torch.device],
        threads: Choice[int],
        spent: Callable[[], float],
        module: nn.Module | None,
        resume: bool,
    ) -> Results | None:
        """Train on DATA and evaluate; returns the results, or None on every rank but the first.

        spent: returns the seconds of the budget used so far.
        """
        seconds = read_budget(config.budget)
        budget = Budget(seconds, spent, self.world.agree) if seconds else None
        prepared = prepare(
            config,
            data,
            device,
            threads,
            self.reporter,
            world=self.world,
            budget=budget,
            module=module,
            before_decoding=self._save_config,
        )
        self.phases |= prepared.seconds
        self._save_start(prepared)
        provenance = {
            "data": data,
            "found": prepared.found,
            "data_key": prepared.data_key,
            "config": prepared.config.model_dump(),
            "versions": package_versions(),
        }
        with stop_on_signals(self.world.stop):
            with naming_misplaced(lambda: prepared.data.new_network(prepared.config)):
                trainer = self._make_trainer(prepared, budget, provenance)
            if resume:
                trainer.resume()
            progress = trainer.run()
        self.phases["training"] = progress.training_seconds
        self.phases["validation"] = progress.validation_seconds
        results = finish(
            prepared.config,
            prepared.dataset,
            trainer.classifier,
            progress,
            self.folder,
            phases=self.phases,
            provenance=provenance,
            world=self.world,
        )
        if module is not None:  # with a moving average, the evaluated weights are in a copy
            module.load_state_dict(trainer.classifier.net.state_dict())
        return results

    def _save_config(self, config: Config) -> None:
        """Save the config before any long work, so that --resume finds it."""
        if self.world.is_main:
            save_config(config, self.folder.path / CONFIG)

    def _save_start(self, prepared: PreparedRun) -> None:
        """Save what is known before training: the fully resolved config, with the reasons."""
        self._save_config(prepared.config)
        if self.world.is_main:
            folder = self.folder.path
            prepared.plan.save(folder / "plan.json")
            write_json(folder / "environment.json", describe_environment(prepared.data.device))
            write_problems(folder / "problems.csv", prepared.dataset.problems)

    def _make_trainer(
        self, prepared: PreparedRun, budget: Budget | None, provenance: dict[str, Any]
    ) -> Trainer:
        config, data, world = prepared.config, prepared.data, self.world
        dataset, device = data.dataset, data.device
        net = make_net(config, dataset, device, data.module)
        update = make_update(config, net, dataset, data.normalization, device, world)
        evaluated = update.average.model if update.average else net
        classifier = Classifier(evaluated, data.normalization, config.precision, device)

        def keep_epoch(epoch: int, row: EpochRow) -> None:
            if config.keep_epochs:
                file = make_model_file(config, dataset, classifier, {"epoch": row}, provenance)
                save_model(self.folder.epoch_file(epoch), file)

        def make_loader(split: int, batch_size: int, with_next: bool = False) -> Loader:
            ids, ranks = dataset.ids(split), (world.rank, world.size)
            return Loader(data.pictures, ids, batch_size, device, *ranks, with_next)

        watched = {"validation": VALIDATION, **({"test": TEST} if config.test_each_epoch else {})}
        return Trainer(
            config,
            update,
            classifier,
            make_loader(TRAIN, config.batch_size, update.augmentation.mixes),
            {name: make_loader(split, BATCH_SIZE) for name, split in watched.items()},
            name_pictures=lambda batch: _name_pictures(batch, dataset),
            keep_epoch=keep_epoch,
            keep_switch=_SwitchKeeper(prepared, self._save_config, self.folder),
            folder=self.folder,
            data_key=prepared.data_key,
            reporter=self.reporter,
            budget=budget,
            adaptation=adaptation(prepared.asked, prepared.plan.compute, data, self.reporter),
        )


class _SwitchKeeper:
    """Records in config.toml and plan.json what changes during training."""

    def __init__(
        self, prepared: PreparedRun, save: Callable[[Config], None], folder: RunFolder
    ) -> None:
        self.config, self.plan = prepared.config, prepared.plan
        self.save, self.folder = save, folder

    def __call__(self, switch: Switch, reason: str) -> None:
        self.config = self.config.model_copy(update={"switches": (*self.config.switches, switch)})
        kept = Choice(switch.model_dump(), reason)
        self.plan = replace(self.plan, switches=[*self.plan.switches, kept])
        self.save(self.config)
        self.plan.save(self.folder.path / "plan.json")


def _name_pictures(batch: Batch, dataset: Dataset) -> str:
    return listed([dataset.pack.index.locators[number] for number in batch.ids.tolist()])
