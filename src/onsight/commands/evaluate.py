"""The command `onsight eval`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onsight.commands.options import (
    CacheFolder,
    CropBoxes,
    DataFormat,
    Device,
    Json,
    Label,
    LabelFrom,
    Module,
)
from onsight.commands.results import show_results
from onsight.config import Tta


def evaluate(
    model: Path,
    data: str,
    /,
    *,
    device: Device = "auto",
    data_format: DataFormat = "auto",
    label: Label = "",
    label_from: LabelFrom = "",
    crop_boxes: CropBoxes = False,
    cache_folder: CacheFolder = "",
    module: Module = None,
    csv: Annotated[Path | None, Parameter(help="Write a row for every image to this file.")] = None,
    tta: Annotated[
        Tta,
        Parameter(
            help="Test-time augmentation: also report the accuracy of the mean over several views "
            "of each image."
        ),
    ] = "one",
    json_: Json = False,
) -> None:
    """Evaluate a model on DATA, leaving out images that it was trained on.

    Parameters
    ----------
    model
        A run folder or a model file.
    data
        Labelled images, in any form that `onsight train` takes.
    """
    from onsight.inference.evaluate import evaluate as evaluate_model
    from onsight.report.console import Reporter
    from onsight.words import plural

    reporter = Reporter()
    results = evaluate_model(
        model,
        data,
        device=device,
        data_format=data_format,
        label=label,
        label_from=label_from,
        crop_boxes=crop_boxes,
        cache_folder=cache_folder,
        module=module,
        csv=csv,
        tta=tta,
        reporter=reporter,
    )
    for problem in results.pop("problem_rows"):
        reporter.warn(f"not used: {problem.path}: {problem.reason}")
    if results["seen"]:
        left_out = plural(results["seen"], "image")
        reporter.say(f"{left_out} left out: the model was trained or selected with them")
    show_results(results, json_)
