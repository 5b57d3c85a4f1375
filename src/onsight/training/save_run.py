"""Writes the results of a run: the metrics, the model file, the tables and the report."""

import json
import time
from dataclasses import asdict
from typing import Any

import numpy as np

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.data.index import SPLIT_NAMES, TEST, TRAIN, VALIDATION
from onsight.evaluation.learning_curve import TrainingSize, fit_learning_curve
from onsight.evaluation.metrics import compute_metrics, tta_results
from onsight.evaluation.out_of_distribution import detector_results, pool_folds
from onsight.evaluation.predictions import PredictionTable
from onsight.evaluation.results import OutOfDistributionResult, Results, TtaResult
from onsight.evaluation.statistics import Z_95, fold_interval_ratio
from onsight.files import write_json
from onsight.hardware.memory import peak_device_memory_bytes, peak_memory_bytes
from onsight.models.classifier import Classifier
from onsight.models.file import save_model
from onsight.models.out_of_distribution import is_out_of_distribution
from onsight.ranks.world import World
from onsight.report.gallery import Lookalikes, MistakesHeat, save_gallery
from onsight.report.run_files import write_predictions
from onsight.training.evaluate import Evaluation
from onsight.training.fit import Trained
from onsight.training.job import RunJob
from onsight.training.mistakes import find_heat, find_lookalikes
from onsight.training.model_file import make_model_file
from onsight.training.place import PlannedRun
from onsight_explain.python_process import seconds_since_start


def save_run(
    trained: Trained,
    evaluation: Evaluation,
    planned: PlannedRun,
    provenance: dict[str, Any],
    job: RunJob,
) -> Results | None:
    """Write the model file, the tables and the report of a run.

    Spare time before the deadline is used for similar images and heat maps of mistakes.

    Args:
        trained: The trained network.
        evaluation: The predictions for the held-out images.
        planned: The run.
        provenance: The origin of the model, for the model file.
        job: The job.

    Returns:
        The results on the first rank, None on the others.
    """
    job.world.report_activity("writing the results")
    if not job.world.is_main:
        return None
    if job.unrepeatable:
        _record_nondeterminism(job)
    config, dataset = planned.config, planned.dataset
    results = _compute_results(trained, evaluation, planned)
    file = make_model_file(config, dataset, trained.classifier, results, provenance)
    save_model(job.folder.model_file, file)
    _add_run_facts(results, config, trained, provenance, job.world)
    job.deadline.release("saving")
    image_seconds = planned.estimates.image_seconds
    with job.timed("similar images"):
        lookalikes = find_lookalikes(
            config, dataset, trained.classifier, evaluation.per_image, job.deadline, image_seconds
        )
    with job.timed("heat maps"):
        heat = find_heat(
            dataset, trained.classifier, evaluation.per_image, job.deadline, image_seconds
        )
    return _write_files(results, evaluation.per_image, lookalikes, heat, dataset, job)


def _record_nondeterminism(job: RunJob) -> None:
    """Add to plan.json which operations may differ in bits when the run is repeated."""
    reason = "torch has no deterministic kernel for it on this device"
    facts = json.loads(job.folder.plan.read_text(encoding="utf-8"))
    facts["unrepeatable"] = asdict(Choice(job.unrepeatable, reason))
    write_json(job.folder.plan, facts)


def _compute_results(trained: Trained, evaluation: Evaluation, planned: PlannedRun) -> Results:
    dataset, folds = planned.dataset, evaluation.folds
    z = Z_95 * (fold_interval_ratio(len(folds)) if folds else 1.0)
    views: TtaResult = {}
    if evaluation.views:
        views = tta_results(evaluation.views, planned.config.tta, z)
    results: Results = {
        **compute_metrics(evaluation.per_image, dataset.classes, z),
        "split": evaluation.split,
        "temperature": trained.temperature.value,
        "temperature_reason": trained.temperature.reason,
        "out_of_distribution": _evaluate_detector(trained.classifier, evaluation, dataset),
        **views,
    }
    if folds:
        results |= {"folds": len(folds), "fold_results": list(folds)}
    if results["out_of_distribution"] is None:
        results["out_of_distribution_reason"] = trained.out_of_distribution.reason
    if trained.fitted:
        results["fitted"] = trained.fitted
    curve = fit_learning_curve(
        [TrainingSize(n, correct / images, images) for n, correct, images in trained.fewer]
    )
    if curve:
        results["learning_curve"] = curve
    _add_counts(results, dataset)
    return results


def _evaluate_detector(
    classifier: Classifier, evaluation: Evaluation, dataset: Dataset
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
    results["notes"] = dataset.notes


def _add_run_facts(
    results: Results,
    config: Config,
    trained: Trained,
    provenance: dict[str, Any],
    world: World,
) -> None:
    classifier, progress = trained.classifier, trained.progress
    training_seconds = max(progress.training_seconds, 1e-9)
    results |= {
        "model": config.model,
        "parameters": sum(parameter.numel() for parameter in classifier.net.parameters()),
        "device": str(classifier.device),
        "ranks": world.size,
        "data": provenance["data"],
        "found": provenance["found"],
        "best_epoch": progress.best_epoch,
        "best_blend": progress.best_blend,
        "epochs": progress.epoch,
        "images_per_second": progress.images / training_seconds,
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
    results["seconds"] = seconds_since_start()
    write_json(folder.path / "results.json", results)
    results["report"] = str(write_report(folder.path))
    phases["report"] = time.perf_counter() - started
    results |= {"seconds": seconds_since_start(), "peak_memory_bytes": peak_memory_bytes()}
    write_json(folder.path / "results.json", results)
    return results
