"""`onsight eval`: evaluate a model file on labelled images that it was not trained on."""

import time
from pathlib import Path

import numpy as np
from torch import nn

from onsight.data.cache import find_cache_folder
from onsight.data.loader import Images, Loader
from onsight.data.sources.find import ReadOptions, find_source, name_data, resolve_data
from onsight.data.sources.memory import InMemory
from onsight.errors import DataError, ModelError
from onsight.evaluation.metrics import compute_metrics, tta_results
from onsight.evaluation.out_of_distribution import detector_results, evaluate_with_scores
from onsight.evaluation.predictions import evaluate_batches, evaluation_batch_size
from onsight.evaluation.results import Results, TtaResult
from onsight.files import check_output, refuse_foreign, refuse_replacing
from onsight.inference.held_out import open_held_out
from onsight.inference.predictor import list_model_files, load
from onsight.inference.runner import NOT_FINITE
from onsight.models.classifier import TtaForward
from onsight.models.out_of_distribution import is_out_of_distribution
from onsight.report.console import Reporter, SilentReporter
from onsight.report.run_files import PREDICTIONS_MARK, write_predictions
from onsight.text import plural


def evaluate(
    model: str | Path,
    data: str | Path | InMemory,
    *,
    device: str = "auto",
    data_format: str = "auto",
    label: str = "",
    label_from: str = "",
    crop_boxes: bool = False,
    cache_folder: str = "",
    module: nn.Module | str | None = None,
    member: str = "",
    csv: Path | None = None,
    tta: str = "none",
    reporter: Reporter | None = None,
) -> Results:
    """Evaluate a model on labelled images.

    Images identical to one that the model was trained or selected with are excluded, and counted
    in the result as `seen`. The result has the keys of `results.json` that an evaluation has.

    Args:
        model: A run folder or a model file.
        data: Labelled images, in any form that `train` accepts.
        device: auto, cpu, cuda, cuda:1, xpu or mps.
        data_format: The format of the data; auto detects it.
        label: The column with the labels, if a manifest has several.
        label_from: A regular expression that extracts the label from each image's path.
        crop_boxes: Treat each annotated box as a separate image.
        cache_folder: Where decoded images are cached; "none" disables the cache.
        module: Your network, if the model is not one of Onsight's; as for `load`.
        member: For a blend: the name of one of its networks, to evaluate it alone.
        csv: A file to write a row per evaluated image to.
        tta: Test-time augmentation (none, flip or flip-shift): also report its accuracy.
        reporter: Where progress is shown. Default: nowhere.

    Raises:
        UserError: The caller can fix the problem.
        DiskError: A file cannot be written.
    """
    reporter = reporter or SilentReporter()
    if csv:
        data_path = data if isinstance(data, str | Path) else None
        check_output("--csv", csv, model=list_model_files(Path(model)), data=data_path)
        refuse_foreign(csv, PREDICTIONS_MARK, "a table of predictions", "--csv")
    predictor = load(model, device=device, module=module, member=member)
    classifier = predictor.classifier
    tta_forward = None if tta == "none" else TtaForward(classifier, tta)
    cache = find_cache_folder(cache_folder)
    resolved = resolve_data(data)
    background, pixel_limit = predictor.format.background, predictor.format.pixel_limit
    options = ReadOptions(data_format, label, label_from, crop_boxes, background, pixel_limit)
    source = find_source(resolved, options, cache)
    reporter.say(f"data: {source.description}")
    if csv:
        refuse_replacing("--csv", csv, data=source.files())
    for note in source.notes:
        reporter.warn(note)
    held_out = open_held_out(predictor, source, cache, reporter)
    pack, ids = held_out.pack, held_out.ids
    if len(ids) == 0:
        raise DataError(
            f"every image of {name_data(resolved)} was used to train this model, so none is left "
            "to evaluate it on; use images that it was not trained with"
        )
    started = time.perf_counter()
    batch_size = evaluation_batch_size(classifier.device, pack.format.model_size)
    loader = Loader(Images.of(pack), ids, batch_size, classifier.device)
    table = evaluate_with_scores(classifier, loader.in_order())
    seconds = time.perf_counter() - started
    if unusable := len(table) - int(np.isfinite(table.losses).sum()):
        raise ModelError(f"{model}: {NOT_FINITE} for {unusable:,} of {plural(len(table), 'image')}")
    tta_metrics: TtaResult = {}
    if tta_forward:
        tta_metrics = tta_results(evaluate_batches(tta_forward, loader.in_order()), tta)
    if csv:
        write_predictions(csv, table, pack)
    detector = predictor.file.out_of_distribution
    flagged = None
    if detector:
        flags = is_out_of_distribution(table.out_of_distribution, detector)
        flagged = detector_results(detector, flags)
    return {
        **compute_metrics(table, predictor.classes),
        **tta_metrics,
        "temperature": predictor.file.temperature,
        "out_of_distribution": flagged,
        "model": predictor.file.model,
        "device": str(classifier.device),
        "seconds": seconds,
        "images_per_second": len(table) / seconds,
        "seen": held_out.excluded,
        "used": len(table),
        "problems": len(held_out.problems),
        "problem_rows": held_out.problems,
    }
