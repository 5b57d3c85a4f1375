"""Cross-validation: every image is evaluated once, by a model that was not trained on it."""

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from onsight.errors import ImagesChanged, Interrupted, NothingAdded
from onsight.evaluation.metrics import accuracy_with_interval
from onsight.evaluation.predictions import PredictionTable, concatenate_tables, held_out_logits
from onsight.evaluation.results import FoldResult
from onsight.report.console import BarReporter, PartReporter
from onsight.tensorfile import put_under, read_tensors, take_under, write_tensors
from onsight.text import duration, fixed_percent, plural
from onsight.training.evaluate import Evaluation, evaluate
from onsight.training.fit import Shared, Trained, accept, fit
from onsight.training.fit_head import evaluate_head, evaluates_on_features
from onsight.training.job import RunJob
from onsight.training.loggers.logger import LoggedRun
from onsight.training.loggers.loggers import closing_loggers
from onsight.training.place import PlannedRun
from onsight.training.run_folder import RunFolder
from onsight.tune.fit_epochs import reserve_heads
from onsight.tune.training_data import data_key, make_normalization

# Of the time left, for a fold of a frozen network: the first computes features for all others.
_FROZEN_FRACTION = 0.8


class FoldReporter(BarReporter, PartReporter):
    """Shows a fold's progress bars and warnings; there would be a line for each of its epochs."""


def cross_validate(planned: PlannedRun, shared: Shared, job: RunJob) -> Evaluation:
    """Train a model for each fold on the other folds, and evaluate it on the images of the fold.

    Folds that were evaluated before an interruption are not repeated. With a deadline, each fold
    and the final model get an equal share of the time, unless the network is frozen.

    Args:
        shared: Loggers, provenance and features of the run.

    Returns:
        The predictions for the images of all folds, on every rank.

    Raises:
        ImagesChanged: The images have changed since the run was interrupted.
        Interrupted: A signal has stopped the run.
        NonFiniteLoss: A loss or gradients are not finite.
    """
    folds = planned.dataset.folds.value
    parts: list[Evaluation] = []
    for fold in range(1, folds + 1):
        name = f"fold {fold} of {folds}"
        held_out = _hold_out(planned, fold)
        shared.features.are_all_needed = (
            evaluates_on_features(planned.config, job)
            and held_out.data.normalization == planned.data.normalization
        )
        folder = job.folder.of_part("folds", str(fold))
        part = _load_evaluation(held_out, folder, job)
        if part is None:
            if job.world.is_main:
                folder.make_checkpoints()
            fraction = 1 / (folds + 2 - fold)
            if planned.config.freeze:
                fraction = _FROZEN_FRACTION
                reserve_heads(job.deadline, folds + 2 - fold)
            fold_job = replace(
                job,
                folder=folder,
                reporter=FoldReporter(job.reporter, name),
                deadline=job.deadline.part(fraction),
                decisions=job.decisions.of_part(folder.path),
            )
            try:
                part = _evaluate_fold(fold, held_out, shared, fold_job)
            except Interrupted as stop:
                raise stop.within(name) from None
        if job.world.is_main:
            folder.remove_checkpoints()
        job.reporter.progress(f"{name}: {_format_row(part.folds[0])}")
        if not parts:
            rows = held_out_logits(part.per_image)
            if reason := job.world.broadcast("judge", partial(shared.judge, rows)):
                raise NothingAdded(reason)
        parts.append(part)
    shared.features.are_all_needed = False
    if planned.config.freeze:
        reserve_heads(job.deadline, 1)
    return _pool(parts)


def _hold_out(planned: PlannedRun, fold: int) -> PlannedRun:
    """Return the run with a fold as its test split, excluded from training and normalization."""
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
    # TensorBoard files go into the fold's folder; other loggers only get the final model.
    names = [name for name in planned.config.loggers if name == "tensorboard"]
    with closing_loggers(names if job.world.is_main else [], job.reporter) as loggers:
        data = shared.provenance["data"]
        loggers.start(LoggedRun(job.folder.path, data, planned.config.model_dump()))
        own = replace(shared, loggers=loggers, judge=accept, is_final=False)
        trained = fit(planned, own, job)
    begun = time.perf_counter()
    classifier = trained.classifier
    evaluation = evaluate_head(planned.config, planned.data, classifier, job, shared.features)
    if evaluation is None:
        evaluation = evaluate(classifier, planned.dataset, planned.config.tta, job.world)
    seconds = sum(trained.seconds.values()) + time.perf_counter() - begun
    row = _make_row(fold, evaluation.per_image, trained, seconds)
    evaluation = replace(evaluation, folds=(row,))
    if job.world.is_main:
        _save_evaluation(evaluation, planned.data_key, job)
    return evaluation


def _make_row(
    fold: int, per_image: PredictionTable, trained: Trained, seconds: float
) -> FoldResult:
    row: dict[str, Any] = {
        "fold": fold,
        "images": len(per_image),
        **accuracy_with_interval(per_image),
        "best_epoch": trained.progress.best_epoch,
        "epochs": trained.progress.epoch,
        "seconds": seconds,
        "left_out": trained.left_out,
    }
    return cast(FoldResult, row)


def _format_row(row: FoldResult) -> str:
    epochs = f"{plural(row['epochs'], 'epoch')} in " if row["epochs"] else ""
    return (
        f"accuracy {fixed_percent(row['accuracy'])} (n = {row['images']:,}), "
        f"{epochs}{duration(row['seconds'])}"
    )


def _save_evaluation(evaluation: Evaluation, key: str, job: RunJob) -> None:
    """Save the predictions of a fold, so that a resumed run does not repeat it."""
    tensors = put_under("one.", _as_tensors(evaluation.per_image))
    if evaluation.views:
        tensors |= put_under("views.", _as_tensors(evaluation.views))
    facts = {
        "data_key": key,
        "split": evaluation.split,
        "row": evaluation.folds[0],
        "elapsed_seconds": job.deadline.whole.elapsed(),
    }
    write_tensors(job.folder.evaluation, tensors, facts)


def _load_evaluation(planned: PlannedRun, folder: RunFolder, job: RunJob) -> Evaluation | None:
    """Load the predictions of a fold, or return None if it has not been evaluated."""
    path = folder.evaluation
    if job.world.broadcast("fold", lambda: str(path.exists())) == "False":
        return None
    tensors, facts = read_tensors(path)
    if facts["data_key"] != planned.data_key:
        raise ImagesChanged(folder.out)
    job.deadline.count_earlier(facts.get("elapsed_seconds", 0.0))
    views = take_under("views.", tensors)
    return Evaluation(
        _as_table(take_under("one.", tensors)),
        _as_table(views) if views else None,
        facts["split"],
        (facts["row"],),
    )


def _as_tensors(table: PredictionTable) -> dict[str, Tensor]:
    return {name: torch.from_numpy(column) for name, column in vars(table).items()}


def _as_table(tensors: dict[str, Tensor]) -> PredictionTable:
    return PredictionTable(**{name: column.numpy() for name, column in tensors.items()})


def _pool(parts: Sequence[Evaluation]) -> Evaluation:
    views = [part.views for part in parts if part.views]
    return Evaluation(
        concatenate_tables([part.per_image for part in parts]),
        concatenate_tables(views) if views else None,
        "folds",
        tuple(row for part in parts for row in part.folds),
    )
