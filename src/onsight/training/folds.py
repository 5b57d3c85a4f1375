"""Folds: every image judged once, by one of several models that have not seen it."""

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from onsight.config import Switch
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.errors import DataError
from onsight.evaluation.metrics import proportion_with_interval
from onsight.evaluation.predictions import PredictionTable
from onsight.evaluation.results import FoldResult
from onsight.report.console import Bar, Reporter
from onsight.tensorfile import read_tensors, write_tensors
from onsight.text import duration, fixed_percent, plural
from onsight.training.judge import Judged, judge
from onsight.training.loggers.logger import LoggedRun
from onsight.training.loggers.loggers import Loggers, logging
from onsight.training.prepare import PreparedRun
from onsight.training.run_folder import RunFolder
from onsight.training.train_once import RunContext, Trained, train_once
from onsight.tune.budget import Budget
from onsight.tune.fit_size import evaluated_images
from onsight.tune.training_data import data_key, make_normalization


class FoldReporter(Reporter):
    """Names the fold that bars and warnings are about; lines on epochs are left to files."""

    def __init__(self, reporter: Reporter, name: str) -> None:
        super().__init__(reporter.console)
        self.reporter = reporter
        self.name = name

    def say(self, text: str) -> None:
        """Nothing: there would be a line for every epoch of every fold."""

    def warn(self, text: str) -> None:
        """One line that deserves attention."""
        self.reporter.warn(f"{self.name}: {text}")

    @contextmanager
    def bar(self, title: str, total: int | None, unit: str = "images") -> Iterator[Bar]:
        """A progress bar."""
        with self.reporter.bar(f"{self.name}, {title}", total, unit) as bar:
            yield bar


def judge_folds(
    prepared: PreparedRun, context: RunContext, budget: Budget | None, resume: bool
) -> Judged:
    """Train a model for each fold, on the other folds, and judge the fold's images with it.

    What an interrupted run has judged is not repeated. Every rank returns the same. Raises
    DataError if the images changed since then, Interrupted, NonFiniteLoss.
    """
    folds = prepared.dataset.folds.value
    parts: list[Judged] = []
    for fold in range(1, folds + 1):
        name = f"fold {fold} of {folds}"
        mine, held_out = _context_of(context, fold, name), _held_out(prepared, fold)
        part = _kept(held_out, mine)
        if part is None:
            limit = budget and _limit(budget, held_out, folds + 2 - fold)
            part = _judge_fold(fold, held_out, mine, limit, resume)
        elif budget:
            budget.resume(part.folds[0]["seconds"])
        if context.world.is_main:
            mine.folder.remove_checkpoints()
        context.reporter.say(f"{name}: {_line(part.folds[0])}")
        parts.append(part)
    return _pooled(parts)


def _context_of(context: RunContext, fold: int, name: str) -> RunContext:
    def keep_switch(switch: Switch, reason: str) -> None:
        context.keep_switch(switch.model_copy(update={"fold": fold}), reason)

    return replace(
        context,
        folder=context.folder.of_fold(fold),
        reporter=FoldReporter(context.reporter, name),
        keep_switch=keep_switch,
    )


def _held_out(prepared: PreparedRun, fold: int) -> PreparedRun:
    """The run with a fold as its test part, and nothing known of those images."""
    data, dataset = prepared.data, prepared.dataset.holding_out_fold(fold)
    config = prepared.config.model_copy(update={"keep_epochs": False})
    data = replace(
        data,
        dataset=dataset,
        normalization=make_normalization(config, data.images, dataset),
        module=copy.deepcopy(data.module),
    )
    prepared = replace(prepared, config=config, data=data)
    return replace(prepared, data_key=data_key(dataset)).for_fold(fold)


def _limit(budget: Budget, prepared: PreparedRun, trainings: int) -> Budget:
    """A fold's share of the time left for this many trainings."""
    training, validation, test = (
        len(prepared.dataset.ids(one)) for one in (TRAIN, VALIDATION, TEST)
    )
    tested = evaluated_images(prepared.config, training, validation, test)
    return budget.part(1 / trainings, tested, validation)


def _judge_fold(
    fold: int, prepared: PreparedRun, context: RunContext, budget: Budget | None, resume: bool
) -> Judged:
    if context.world.is_main:
        context.folder.make_checkpoints()
    with _fold_logging(prepared, context) as loggers:
        trained = train_once(prepared, replace(context, loggers=loggers), budget, resume)
    begun = time.perf_counter()
    judged = judge(trained.classifier, prepared.dataset, prepared.config.tta, context.world)
    seconds = sum(trained.seconds.values()) + time.perf_counter() - begun
    judged = replace(judged, folds=(_row(fold, judged.per_image, trained, seconds),))
    if context.world.is_main:
        _keep(judged, context.folder, prepared.data_key)
    return judged


def _fold_logging(prepared: PreparedRun, context: RunContext) -> AbstractContextManager[Loggers]:
    """Event files in the fold's folder; other loggers show the model that is kept alone."""
    names = [name for name in prepared.config.loggers if name == "tensorboard"]
    run = LoggedRun(context.folder.path, context.provenance["data"], prepared.config.model_dump())
    return logging(names if context.world.is_main else [], run, context.reporter)


def _row(fold: int, per_image: PredictionTable, trained: Trained, seconds: float) -> FoldResult:
    right = int((per_image.labels == per_image.predicted).sum())
    row: dict[str, Any] = {
        "fold": fold,
        "images": len(per_image),
        **proportion_with_interval("accuracy", right, len(per_image)),
        "best_epoch": trained.progress.best_epoch,
        "epochs": trained.progress.epoch,
        "seconds": seconds,
    }
    return cast(FoldResult, row)


def _line(row: FoldResult) -> str:
    epochs = f"{plural(row['epochs'], 'epoch')} in " if row["epochs"] else ""
    return (
        f"accuracy {fixed_percent(row['accuracy'])} (n = {row['images']:,}), "
        f"{epochs}{duration(row['seconds'])}"
    )


def _keep(judged: Judged, folder: RunFolder, key: str) -> None:
    """Save what a fold's model predicted, from which an interrupted run continues."""
    tensors = _tensors("one", judged.per_image)
    if judged.views:
        tensors |= _tensors("views", judged.views)
    facts = {"data_key": key, "split": judged.split, "row": judged.folds[0]}
    write_tensors(folder.judged, tensors, facts)


def _kept(prepared: PreparedRun, context: RunContext) -> Judged | None:
    """What an interrupted run has kept of this fold, if it came so far."""
    path = context.folder.judged
    if context.world.broadcast("fold", lambda: str(path.exists())) == "False":
        return None
    tensors, facts = read_tensors(path)
    if facts["data_key"] != prepared.data_key:
        raise DataError(
            f"the images changed since the run in {context.folder.to_resume} began; "
            "start a new run, or restore the original images"
        )
    views = _per_image("views", tensors) if "views.ids" in tensors else None
    return Judged(_per_image("one", tensors), views, facts["split"], (facts["row"],))


def _tensors(name: str, per_image: PredictionTable) -> dict[str, Tensor]:
    columns = asdict(per_image)
    return {f"{name}.{column}": torch.from_numpy(values) for column, values in columns.items()}


def _per_image(name: str, tensors: dict[str, Tensor]) -> PredictionTable:
    start = f"{name}."
    columns = {key[len(start) :]: value.numpy() for key, value in tensors.items() if start in key}
    return PredictionTable(**columns)


def _pooled(parts: Sequence[Judged]) -> Judged:
    """All folds' predictions together, in the order of the images."""
    views = [part.views for part in parts if part.views]
    return Judged(
        _in_order([part.per_image for part in parts]),
        _in_order(views) if views else None,
        "folds",
        tuple(row for part in parts for row in part.folds),
    )


def _in_order(parts: Sequence[PredictionTable]) -> PredictionTable:
    columns = [asdict(part) for part in parts]
    together = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
    order = np.argsort(together["ids"])
    return PredictionTable(**{name: values[order] for name, values in together.items()})
