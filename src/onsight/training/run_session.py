"""A run in this process: prepare, train, judge."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from onsight.choice import Choice
from onsight.config import Config, Switch
from onsight.config_files import save_config
from onsight.data.index import VALIDATION
from onsight.data.sources.find import name_data
from onsight.data.sources.source import Source
from onsight.evaluation.results import Results
from onsight.files import write_json
from onsight.hardware.devices import describe_environment, package_versions
from onsight.hardware.memory import reset_peak_device_memory
from onsight.ranks.world import World
from onsight.report.console import Reporter
from onsight.report.run_files import write_problems
from onsight.training.folds import judge_folds
from onsight.training.judge import judge
from onsight.training.loggers.logger import LoggedRun
from onsight.training.loggers.loggers import Loggers, logging
from onsight.training.prepare import PreparedRun, prepare
from onsight.training.run_folder import CONFIG, RunFolder
from onsight.training.save_run import finish
from onsight.training.train_once import RunContext, train_once
from onsight.tune.budget import Budget, read_budget
from onsight_explain.python_process import seconds_since_start


class RunSession:
    """What a run needs from start to finish; `run` does the work.

    unrepeatable: names of operations without a deterministic kernel, which grow while it runs;
    restarted: whether a budget's clock has run on since the run began.
    """

    def __init__(
        self,
        folder: RunFolder,
        reporter: Reporter,
        world: World,
        unrepeatable: list[str],
        restarted: bool = False,
    ) -> None:
        self.restarted = restarted
        self.folder = folder
        self.reporter = reporter
        self.world = world
        self.unrepeatable = unrepeatable
        self.phases = {"start": seconds_since_start()}

    def run(
        self,
        data: str | Source,
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
        budget = Budget(seconds, spent, self.world.agree, self.restarted) if seconds else None
        self.world.does("preparing the images and the plan")
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
        reset_peak_device_memory(device.value)  # that of the networks that were only timed
        self._save_start(prepared)
        provenance = {
            "data": name_data(data),
            "found": prepared.found,
            "data_key": prepared.data_key,
            "config": prepared.config.model_dump(),
            "versions": package_versions(),
        }
        logged = LoggedRun(self.folder.path, name_data(data), prepared.config.model_dump())
        names = prepared.config.loggers if self.world.is_main else []
        with logging(names, logged, self.reporter) as loggers:
            results = self._train(prepared, provenance, loggers, budget, resume)
            if results:
                loggers.log_results(results)
        return results

    def _train(
        self,
        prepared: PreparedRun,
        provenance: dict[str, Any],
        loggers: Loggers,
        budget: Budget | None,
        resume: bool,
    ) -> Results | None:
        """Train, judge and write the results; returns them on the first rank."""
        keeper = _PlanKeeper(prepared, self._save_config, self.folder)
        context = RunContext(
            self.folder, self.reporter, self.world, provenance, keeper.switch, loggers
        )
        judged, limit = None, budget
        if prepared.dataset.folds.value > 1:
            judged = judge_folds(prepared, context, budget, resume)
            self.phases["folds"] = sum(row["seconds"] for row in judged.folds)
            validation = len(prepared.dataset.ids(VALIDATION))
            limit = budget and budget.part(1, 0, validation)  # none is left to judge the model
        trained = train_once(prepared.for_fold(0), context, limit, resume)
        self.phases |= trained.seconds
        if judged is None:
            begun = time.perf_counter()
            judged = judge(trained.classifier, prepared.dataset, prepared.config.tta, self.world)
            self.phases["test"] = time.perf_counter() - begun
        if self.unrepeatable and self.world.is_main:
            keeper.keep_unrepeatable(self.unrepeatable)
        self.world.does("writing the results")
        results = finish(
            prepared.config,
            prepared.dataset,
            trained,
            judged,
            self.folder,
            phases=self.phases,
            provenance=provenance,
            world=self.world,
            budget=budget,
        )
        module = prepared.data.module
        if module is not None:  # with a moving average, the evaluated weights are in a copy
            module.load_state_dict(trained.classifier.net.state_dict())
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


class _PlanKeeper:
    """Records in config.toml and plan.json what changes during training."""

    def __init__(
        self, prepared: PreparedRun, save: Callable[[Config], None], folder: RunFolder
    ) -> None:
        self.config, self.plan = prepared.config, prepared.plan
        self.save, self.folder = save, folder

    def switch(self, switch: Switch, reason: str) -> None:
        """Keep a change of how steps are computed."""
        self.config = self.config.model_copy(update={"switches": (*self.config.switches, switch)})
        kept = Choice(switch.model_dump(), reason)
        self.plan = replace(self.plan, switches=[*self.plan.switches, kept])
        self.save(self.config)
        self.plan.save(self.folder.path / "plan.json")

    def keep_unrepeatable(self, operations: list[str]) -> None:
        """Keep why a repetition may differ in bits."""
        kept = Choice(operations, "torch has no deterministic kernel for it on this device")
        self.plan = replace(self.plan, unrepeatable=kept)
        self.plan.save(self.folder.path / "plan.json")
