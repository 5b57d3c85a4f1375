"""Evaluating a model file on DATA, leaving out every image that it was trained on."""

import time
from pathlib import Path

from torch import nn

from onsight.data.cache import find_cache_folder
from onsight.data.loader import Images, Loader
from onsight.data.sources.find import ReadOptions, find_source, name_data, resolve_data
from onsight.data.sources.memory import InMemory
from onsight.errors import DataError
from onsight.evaluation.metrics import summarise, tta_results
from onsight.evaluation.out_of_distribution import evaluate_scored, out_of_distribution_result
from onsight.evaluation.per_image import evaluate_batches, evaluation_batch
from onsight.evaluation.results import Results
from onsight.files import check_output, refuse_replacing
from onsight.inference.held_out import open_held_out
from onsight.inference.job import files_of_model
from onsight.inference.predictor import load
from onsight.models.out_of_distribution import is_out_of_distribution
from onsight.models.tta import TtaForward
from onsight.report.console import Reporter, SilentReporter
from onsight.report.tables import write_predictions


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
    csv: Path | None = None,
    tta: str = "one",
    reporter: Reporter | None = None,
) -> Results:
    """Evaluate a run folder or model file on labelled images, given as for `train`.

    Images identical to one that the model was trained or selected with are left out and counted
    in `seen`. module: as for `load`; csv: a file to write a row per evaluated image to; tta:
    test-time augmentation, as in the config. Raises UserError, DiskError.
    """
    reporter = reporter or SilentReporter()
    if csv:
        named = data if isinstance(data, str | Path) else None
        check_output("--csv", csv, model=files_of_model(Path(model)), data=named)
    predictor = load(model, device=device, module=module)
    forward = None if tta == "one" else TtaForward(predictor.classifier, tta)
    kept = find_cache_folder(cache_folder)
    taken = resolve_data(data)
    source = find_source(taken, ReadOptions(data_format, label, label_from, crop_boxes), kept)
    reporter.say(f"data: {source.description}")
    if csv:
        refuse_replacing("--csv", csv, data=source.files())
    for note in source.notes:
        reporter.warn(note)
    held_out = open_held_out(predictor, source, kept, reporter)
    pack, ids = held_out.pack, held_out.ids
    if len(ids) == 0:
        raise DataError(
            f"every image of {name_data(taken)} was used to train this model, so none can be "
            "used to evaluate it; give images that it has not seen"
        )
    begun = time.perf_counter()
    place = predictor.classifier.device
    loader = Loader(Images.of(pack), ids, evaluation_batch(place, pack.format.shown), place)
    stored = predictor.file.out_of_distribution
    per_image = evaluate_scored(predictor.classifier, loader.in_order())
    seconds = time.perf_counter() - begun
    views = tta_results(evaluate_batches(forward, loader.in_order()), tta) if forward else {}
    if csv:
        write_predictions(csv, per_image, pack)
    return {
        **summarise(per_image, predictor.classes),
        **views,
        "temperature": predictor.file.temperature,
        "out_of_distribution": out_of_distribution_result(
            stored, is_out_of_distribution(per_image.out_of_distribution, stored)
        )
        if stored
        else None,
        "model": predictor.file.model,
        "device": str(predictor.classifier.device),
        "seconds": seconds,
        "images_per_second": len(per_image) / seconds,
        "seen": held_out.left_out,
        "used": len(per_image),
        "problems": len(held_out.problems),
        "problem_rows": held_out.problems,
    }
