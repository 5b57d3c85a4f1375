"""The end of a run: the one final evaluation, the model file, the tables and the report."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.data.index import SPLIT_NAMES, TEST, TRAIN, VALIDATION
from onsight.data.loader import Loader
from onsight.evaluation.metrics import summarise, tta_results
from onsight.evaluation.per_image import BATCH_SIZE, PerImageResults, evaluate_batches
from onsight.evaluation.results import Results, TtaResult
from onsight.files import write_json
from onsight.hardware.usage import (
    peak_device_memory_bytes,
    peak_memory_bytes,
    seconds_since_start,
)
from onsight.models.classifier import Classifier
from onsight.models.file import ModelFile, picture_keys, save_model
from onsight.models.preprocessing import Preprocessing
from onsight.models.tta import TtaForward
from onsight.report.gallery import save_gallery
from onsight.report.tables import write_predictions
from onsight.training.ranks.ddp import gather_per_image
from onsight.training.ranks.world import World
from onsight.training.run_folder.checkpoint import load_weights
from onsight.training.run_folder.folder import RunFolder
from onsight.training.run_folder.progress import Progress
from onsight.training.step.calibrate import calibrate
from onsight.training.step.recalibrate import recalibrate_norms


def finish(
    config: Config,
    dataset: Dataset,
    classifier: Classifier,
    progress: Progress,
    folder: RunFolder,
    *,
    phases: dict[str, float],
    provenance: dict[str, Any],
    world: World,
) -> Results | None:
    """Evaluate the best weights on the held-out pictures; the first rank writes every result."""
    world.broadcast("best weights", str)  # the first rank has written them when it gets here
    load_weights(folder.best_weights, classifier.net)
    split = TEST if (dataset.splits == TEST).any() else VALIDATION
    begun = time.perf_counter()
    if config.recalibrate_norm and not config.freeze:  # a frozen backbone keeps its own
        recalibrate_norms(classifier, dataset.pictures, dataset.ids(TRAIN))
    temperature = calibrate(classifier, dataset.pictures, dataset.ids(VALIDATION), world)
    ids = dataset.ids(split)
    loader = Loader(dataset.pictures, ids, BATCH_SIZE, classifier.device, world.rank, world.size)
    per_image = _judge(classifier, loader, world, classifier.temperature)
    views: TtaResult = {}
    if config.tta != "one":
        judged = _judge(TtaForward(classifier, config.tta), loader, world)
        views = tta_results(judged, config.tta)
    phases["test"] = time.perf_counter() - begun
    if not world.is_main:
        return None

    results: Results = {
        **summarise(per_image, dataset.classes),
        "split": SPLIT_NAMES[split],
        "temperature": temperature.value,
        "temperature_reason": temperature.reason,
        **views,
    }
    _add_counts(results, dataset)
    save_model(folder.model_file, make_model_file(config, dataset, classifier, results, provenance))
    _add_circumstances(results, config, classifier, progress, provenance, world)
    return _write_out(results, per_image, dataset, folder, phases)


def _judge(
    forward: Callable[[Tensor], Tensor], loader: Loader, world: World, temperature: float = 1.0
) -> PerImageResults:
    judged = evaluate_batches(forward, loader.in_order(), temperature)
    return gather_per_image(judged, loader.ids, world)


def _add_counts(results: Results, dataset: Dataset) -> None:
    train, validation = dataset.counts(TRAIN), dataset.counts(VALIDATION)
    for number, row in enumerate(results["classes"]):
        row["train_images"] = int(train[number])
        row["validation_images"] = int(validation[number])
    results["used"] = dataset.used
    results["problems"] = len(dataset.problems)
    results["notes"] = dataset.notes


def make_model_file(
    config: Config,
    dataset: Dataset,
    classifier: Classifier,
    results: Mapping[str, Any],
    provenance: dict[str, Any],
) -> ModelFile:
    """The classifier as it is now, with its preprocessing, results and provenance."""
    scaling = classifier.normalization
    inputs = {"mean": scaling.mean, "std": scaling.std, "precision": classifier.precision}
    taken = (dataset.splits == TRAIN) | (dataset.splits == VALIDATION)
    return ModelFile(
        model=config.model,
        classes=dataset.classes,
        preprocessing=Preprocessing.of(vars(dataset.format) | inputs),
        results=results,
        provenance=provenance,
        weights=dict(classifier.net.state_dict()),
        seen=picture_keys(dataset.pack.digests[taken]),
        temperature=classifier.temperature,
    )


def _add_circumstances(
    results: Results,
    config: Config,
    classifier: Classifier,
    progress: Progress,
    provenance: dict[str, Any],
    world: World,
) -> None:
    trained = max(progress.training_seconds, 1e-9)
    results |= {
        "model": config.model,
        "parameters": sum(parameter.numel() for parameter in classifier.net.parameters()),
        "device": str(classifier.device),
        "ranks": world.size,
        "data": provenance["data"],
        "found": provenance["found"],
        "best_epoch": progress.best_epoch,
        "epochs": progress.epoch,
        "images_per_second": progress.images / trained,
        "data_wait_share": progress.wait_seconds / trained,
        "peak_device_memory_bytes": peak_device_memory_bytes(classifier.device),
    }


def _write_out(
    results: Results,
    per_image: PerImageResults,
    dataset: Dataset,
    folder: RunFolder,
    phases: dict[str, float],
) -> Results:
    """Write tables, pictures and report; the seconds of the report are added to the results."""
    from onsight.report.html import write_report  # matplotlib: half a second, not at start

    begun = time.perf_counter()
    write_predictions(folder.path / "predictions.csv", per_image, dataset.pack.index)
    save_gallery(folder.path / "gallery", per_image, dataset.pack)
    results |= {"phases": phases, "peak_memory_bytes": peak_memory_bytes()}
    results["seconds"] = seconds_since_start()
    write_json(folder.path / "results.json", results)
    results["report"] = str(write_report(folder.path))
    phases["report"] = time.perf_counter() - begun
    results |= {"seconds": seconds_since_start(), "peak_memory_bytes": peak_memory_bytes()}
    write_json(folder.path / "results.json", results)
    return results
