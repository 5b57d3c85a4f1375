"""Cross-validation: every image is evaluated once, by a model that was not trained on it."""

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from onsight.errors import DataError
from onsight.evaluation.metrics import proportion_with_interval
from onsight.evaluation.predictions import PredictionTable
from onsight.evaluation.results import FoldResult
from onsight.ranks.world import World
from onsight.report.console import Bar, Reporter
from onsight.tensorfile import read_tensors, write_tensors
from onsight.text import duration, fixed_percent, plural
from onsight.training.evaluate import Evaluation, evaluate
from onsight.training.fit import Shared, Trained, fit
from onsight.training.job import RunJob
from onsight.training.loggers.logger import LoggedRun
from onsight.training.loggers.loggers import Loggers, logging
from onsight.training.place import PlannedRun
from onsight.training.run_folder import RunFolder
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


def cross_validate(planned: PlannedRun, shared: Shared, job: RunJob) -> Evaluation:
    """Train a model for each fold, on the other folds, and evaluate it on the fold's images.

    What an interrupted run has evaluated is not repeated. With a deadline, each fold and the model
    that is kept get an equal part of the time. Every rank returns the same. Raises DataError if the
    images changed since then, Interrupted, NonFiniteLoss.
    """
    folds = planned.dataset.folds.value
    parts: list[Evaluation] = []
    for fold in range(1, folds + 1):
        name = f"fold {fold} of {folds}"
        held_out = _hold_out(planned, fold)
        folder = job.folder.for_fold(fold)
        part = _read_kept(held_out, folder, job.world)
        if part is None:
            fold_job = _make_fold_job(job, fold, folder, name, 1 / (folds + 2 - fold))
            part = _evaluate_fold(fold, held_out, shared, fold_job)
        else:
            job.deadline.add_elapsed(part.folds[0]["seconds"])
        if job.world.is_main:
            folder.remove_checkpoints()
        job.reporter.say(f"{name}: {_line(part.folds[0])}")
        parts.append(part)
    return _pool(parts)


def _make_fold_job(job: RunJob, fold: int, folder: RunFolder, name: str, fraction: float) -> RunJob:
    if job.world.is_main:
        folder.make_checkpoints()
    return replace(
        job,
        folder=folder,
        reporter=FoldReporter(job.reporter, name),
        deadline=job.deadline.part(fraction),
        decisions=job.decisions.of_fold(fold, folder.path),
    )


def _hold_out(planned: PlannedRun, fold: int) -> PlannedRun:
    """The run with a fold as its test part, and nothing known of those images."""
    data, dataset = planned.data, planned.dataset.holding_out_fold(fold)
    config = planned.config.model_copy(update={"keep_epochs": False})
    data = replace(
        data,
        dataset=dataset,
        normalization=make_normalization(config, data.images, dataset),
        module=copy.deepcopy(data.module),
    )
    return replace(planned, config=config, data=data, data_key=data_key(dataset))


def _evaluate_fold(fold: int, planned: PlannedRun, shared: Shared, job: RunJob) -> Evaluation:
    job.begin_decisions(planned.data_key)
    with _fold_logging(planned, shared, job) as loggers:
        trained = fit(planned, replace(shared, loggers=loggers), job)
    begun = time.perf_counter()
    evaluation = evaluate(trained.classifier, planned.dataset, planned.config.tta, job.world)
    seconds = sum(trained.seconds.values()) + time.perf_counter() - begun
    row = _row(fold, evaluation.per_image, trained, seconds)
    evaluation = replace(evaluation, folds=(row,))
    if job.world.is_main:
        _keep(evaluation, job.folder, planned.data_key)
    return evaluation


def _fold_logging(
    planned: PlannedRun, shared: Shared, job: RunJob
) -> AbstractContextManager[Loggers]:
    """Event files in the fold's folder; other loggers show the model that is kept alone."""
    names = [name for name in planned.config.loggers if name == "tensorboard"]
    run = LoggedRun(job.folder.path, shared.provenance["data"], planned.config.model_dump())
    return logging(names if job.world.is_main else [], run, job.reporter)


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


def _keep(evaluation: Evaluation, folder: RunFolder, key: str) -> None:
    """Save what a fold's model predicted, from which an interrupted run continues."""
    tensors = _tensors("one", evaluation.per_image)
    if evaluation.views:
        tensors |= _tensors("views", evaluation.views)
    facts = {"data_key": key, "split": evaluation.split, "row": evaluation.folds[0]}
    write_tensors(folder.evaluation, tensors, facts)


def _read_kept(planned: PlannedRun, folder: RunFolder, world: World) -> Evaluation | None:
    """What an interrupted run has kept of this fold, if it came so far."""
    path = folder.evaluation
    if world.broadcast("fold", lambda: str(path.exists())) == "False":
        return None
    tensors, facts = read_tensors(path)
    if facts["data_key"] != planned.data_key:
        raise DataError(
            f"the images changed since the run in {folder.out} began; "
            "start a new run, or restore the original images"
        )
    views = _per_image("views", tensors) if "views.ids" in tensors else None
    return Evaluation(_per_image("one", tensors), views, facts["split"], (facts["row"],))


def _tensors(name: str, per_image: PredictionTable) -> dict[str, Tensor]:
    columns = asdict(per_image)
    return {f"{name}.{column}": torch.from_numpy(values) for column, values in columns.items()}


def _per_image(name: str, tensors: dict[str, Tensor]) -> PredictionTable:
    start = f"{name}."
    columns = {
        key.removeprefix(start): value.numpy()
        for key, value in tensors.items()
        if key.startswith(start)
    }
    return PredictionTable(**columns)


def _pool(parts: Sequence[Evaluation]) -> Evaluation:
    """All folds' predictions together, in the order of the images."""
    views = [part.views for part in parts if part.views]
    return Evaluation(
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
