"""Writes the results of a run: the metrics, the model file, the tables and the report."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from onsight.choice import Choice
from onsight.data.dataset import Dataset
from onsight.data.index import SPLIT_NAMES, TEST, TRAIN, VALIDATION
from onsight.evaluation.learning_curve import fit_learning_curve
from onsight.evaluation.metrics import compute_metrics, tta_results, validation_results
from onsight.evaluation.out_of_distribution import detector_results, pool_folds
from onsight.evaluation.predictions import PredictionTable
from onsight.evaluation.results import (
    FoldResult,
    OutOfDistributionResult,
    Results,
    TtaResult,
    ValidationResult,
)
from onsight.evaluation.statistics import Z_95, fold_interval_ratio
from onsight.files import write_json
from onsight.hardware.memory import peak_device_memory_bytes, peak_memory_bytes
from onsight.models.classifier import ImageClassifier
from onsight.models.file import BlendFile, ModelFile, save_model
from onsight.models.out_of_distribution import is_out_of_distribution
from onsight.ranks.world import World
from onsight.report.gallery import Lookalikes, MistakesHeat, save_gallery
from onsight.report.run_files import write_predictions
from onsight.training.blend_members import FinalModel, describe_members, held_out_table
from onsight.training.evaluate import Evaluation
from onsight.training.fit_head import describe_left_out
from onsight.training.job import RunJob
from onsight.training.listener import NOTHING_TRAINED
from onsight.training.mistakes import find_heat, find_lookalikes
from onsight.training.model_file import make_model_file
from onsight.training.open_data import OpenedData
from onsight.tune.candidates import HEAD
from onsight.untrusted import read_json


def save_run(
    final: FinalModel,
    evaluation: Evaluation,
    opened: OpenedData,
    provenance: dict[str, Any],
    job: RunJob,
) -> Results | None:
    """Write the model file, the tables and the report of a run.

    Spare time before the deadline is used for similar images and heat maps of mistakes.

    Args:
        opened: The images, and the settings of the run.

    Returns:
        The results on the first rank, None on the others.
    """
    job.world.report_activity("writing the results")
    if not job.world.is_main:
        return None
    if job.unrepeatable:
        _record_nondeterminism(job)
    dataset, classifier, per_image = final.dataset, final.classifier, evaluation.per_image
    results = _compute_results(final, evaluation, opened)
    save_model(job.folder.model_file, _make_file(final, results, provenance))
    _add_run_facts(results, final, provenance, job.world)
    job.deadline.release("saving")
    image_seconds = final.image_seconds if job.deadline.is_set else 0.0
    with job.timed("similar images"):
        lookalikes = find_lookalikes(
            final.main.config, dataset, classifier, per_image, job.deadline, image_seconds
        )
    with job.timed("heat maps"):
        heat = find_heat(dataset, classifier, per_image, job.deadline, image_seconds)
    return _write_files(results, per_image, lookalikes, heat, dataset, job)


def save_best_so_far(
    final: FinalModel, opened: OpenedData, provenance: dict[str, Any], job: RunJob
) -> None:
    """Write a complete model file between the trainings of a run, with results on validation."""
    table = held_out_table(final)
    results: Results = {**compute_metrics(table, opened.dataset.classes), "split": "validation"}
    save_model(job.folder.model_file, _make_file(final, results, provenance))


def _make_file(
    final: FinalModel, results: Results, provenance: dict[str, Any]
) -> ModelFile | BlendFile:
    is_blend = len(final.kept) > 1
    of_member: Mapping[str, Any] = {} if is_blend else results  # a blend's hold for it alone
    files = {
        member.name: make_model_file(
            member.config,
            member.dataset,
            member.classifier,
            of_member,
            {**provenance, "config": member.config.model_dump()},  # nothing is left open in it
        )
        for member in final.kept
    }
    main = files[final.main.name]
    if not is_blend:
        return main
    return BlendFile(
        files,
        final.weights,
        final.feature_member.name,
        results,
        provenance,
        main.seen,
        final.temperature.value,
        final.classifier.out_of_distribution,
    )


def _record_nondeterminism(job: RunJob) -> None:
    """Add to plan.json which operations may differ in bits when the run is repeated."""
    reason = "torch has no deterministic kernel for it on this device"
    facts = read_json(job.folder.plan)
    facts["unrepeatable"] = asdict(Choice(job.unrepeatable, reason))
    write_json(job.folder.plan, facts)


def _compute_results(final: FinalModel, evaluation: Evaluation, opened: OpenedData) -> Results:
    dataset, folds = final.dataset, evaluation.folds
    z = Z_95 * (fold_interval_ratio(len(folds)) if folds else 1.0)
    views: TtaResult = {}
    if evaluation.views:
        views = tta_results(evaluation.views, opened.config.tta, z)
    validation: ValidationResult = {} if folds else validation_results(held_out_table(final))
    results: Results = {
        **compute_metrics(evaluation.per_image, dataset.classes, z),
        "split": evaluation.split,
        "temperature": final.temperature.value,
        "temperature_reason": final.temperature.reason,
        "out_of_distribution": _evaluate_detector(final.classifier, evaluation, dataset),
        **views,
        **validation,
    }
    if folds:
        results |= {"folds": len(folds), "fold_results": list(folds)}
    if results["out_of_distribution"] is None:
        results["out_of_distribution_reason"] = final.out_of_distribution.reason
    if len(opened.layout.candidates) > 1:
        results["members"] = describe_members(final, z)
    trained = final.main.trained
    if trained.fitted:
        results["fitted"] = trained.fitted
    of_blend = len(final.kept) > 1
    rows = {row["name"]: row for row in results["members"]} if of_blend else {}
    accuracy = rows[final.main.name]["accuracy"] if of_blend else results["accuracy"]
    if curve := fit_learning_curve(trained.fewer, accuracy):
        if of_blend:
            curve["network"] = final.main.name
        results["learning_curve"] = curve
    _add_counts(results, dataset)
    if trained.left_out:
        results["left_out"] = trained.left_out
    results["notes"] = [*dataset.notes, *_describe_left_out(final, folds)]
    return results


def _describe_left_out(final: FinalModel, folds: Sequence[FoldResult]) -> Iterator[str]:
    """Yield what learned from a part of the training images only, for lack of time."""
    for member in final.members:
        if not member.trained.progress.rows:
            yield NOTHING_TRAINED
        if left_out := member.trained.left_out:
            fitted = describe_left_out(left_out, len(member.dataset.ids(TRAIN)))
            name = "the head" if member.name == HEAD else f"the head of {member.name}"
            yield f"{name} {fitted}"
    short = sum(row.get("left_out", 0) > 0 for row in folds)
    if short:
        yield (
            f"{short} of {len(folds)} cross-validated models learned from a part of their training "
            "images, as there was no time for more: the final model may be better than they are"
        )


def _evaluate_detector(
    classifier: ImageClassifier, evaluation: Evaluation, dataset: Dataset
) -> OutOfDistributionResult | None:
    """Count the flagged images among those that the threshold was not set on.

    With folds, the classifier's threshold is replaced by one set on the images of all folds.
    """
    detector, scores = classifier.out_of_distribution, evaluation.per_image.out_of_distribution
    if detector is None:
        return None
    flagged = np.zeros(0, np.bool_)
    if evaluation.folds and np.isfinite(scores).all():
        detector, flagged = pool_folds(detector, scores, dataset.fold[evaluation.per_image.ids])
        classifier.out_of_distribution = detector
    elif evaluation.split == SPLIT_NAMES[TEST]:
        flagged = is_out_of_distribution(scores, detector)
    return detector_results(detector, flagged)


def _add_counts(results: Results, dataset: Dataset) -> None:
    train, validation = dataset.counts(TRAIN), dataset.counts(VALIDATION)
    for number, row in enumerate(results["classes"]):
        row["train_images"] = int(train[number])
        row["validation_images"] = int(validation[number])
    results["used"] = dataset.used
    results["problems"] = len(dataset.problems)


def _add_run_facts(
    results: Results, final: FinalModel, provenance: dict[str, Any], world: World
) -> None:
    classifier, progress = final.classifier, final.main.trained.progress
    training_seconds = max(progress.training_seconds, 1e-9)
    # Unknown for a head on cached features.
    speed = progress.images / training_seconds if progress.images else None
    results |= {
        "model": final.name,
        "parameters": final.parameters,
        "device": str(classifier.device),
        "ranks": world.size,
        "data": provenance["data"],
        "found": provenance["found"],
        "best_epoch": progress.best_epoch,
        "best_blend": progress.best_blend,
        "epochs": progress.epoch,
        "images_per_second": speed,
        "data_wait_share": progress.wait_seconds / training_seconds,
        "peak_device_memory_bytes": peak_device_memory_bytes(classifier.device),
    }


def _write_files(
    results: Results,
    per_image: PredictionTable,
    lookalikes: Lookalikes,
    heat: MistakesHeat,
    dataset: Dataset,
    job: RunJob,
) -> Results:
    """Write tables, images and the report, and add the time of the report to the results."""
    from onsight.report.page import write_report  # imports matplotlib, which takes half a second

    folder, phases = job.folder, job.phases
    started = time.perf_counter()
    folds = dataset.fold if dataset.folds.value > 1 else None
    write_predictions(folder.path / "predictions.csv", per_image, dataset.pack, folds)
    save_gallery(folder.path / "gallery", per_image, dataset.pack, lookalikes, heat)
    results |= {"phases": phases, "peak_memory_bytes": peak_memory_bytes()}
    results["seconds"] = job.deadline.elapsed()
    write_json(folder.path / "results.json", results)
    results["report"] = str(write_report(folder.path))
    phases["report"] = time.perf_counter() - started
    results |= {"seconds": job.deadline.elapsed(), "peak_memory_bytes": peak_memory_bytes()}
    write_json(folder.path / "results.json", results)
    return results
