"""The command `onsight predict`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from onsight.commands.options import CLUSTER, Device, Json, Module

_ROWS = Group("Rows", sort_key=1)
_FILES = Group(
    "Where they go",
    help="Without any of these, a line for each image goes to stdout. Try: "
    "onsight predict runs/pets new/ --csv out.csv",
    sort_key=2,
)
_INPUTS = (
    "Images; folders of images; patterns in quotes, such as 'new/**/*.jpg'; a zip or tar; a "
    "CSV, JSONL or Parquet manifest with a column named path; or - for paths on stdin, one a line "
    "or each ended by NUL: find new -name '*.jpg' -print0 | onsight predict runs/pets -"
)


def predict(
    model: Path,
    /,
    *inputs: Annotated[str, Parameter(allow_leading_hyphen=True, help=_INPUTS)],
    top: Annotated[
        int,
        Parameter(group=_ROWS, help="Also give the N most probable classes."),
    ] = 0,
    min_confidence: Annotated[
        float | None,
        Parameter(
            group=_ROWS,
            help="Below this probability, from 0 to 1, say unsure instead of a class. "
            "Probabilities are calibrated: of predictions at 90%, about 90% are right, if the "
            "images are like those that the model was evaluated on.",
        ),
    ] = None,
    csv: Annotated[
        str | None,
        Parameter(
            group=_FILES,
            allow_leading_hyphen=True,
            help="Write a row for every input to this file; - for stdout.",
        ),
    ] = None,
    jsonl: Annotated[
        str | None,
        Parameter(
            group=_FILES,
            allow_leading_hyphen=True,
            help="The same, a JSON object a line; - for stdout.",
        ),
    ] = None,
    parquet: Annotated[
        Path | None,
        Parameter(group=_FILES, help="The same, as Parquet; needs onsight[parquet]."),
    ] = None,
    save_grid: Annotated[
        Path | None,
        Parameter(
            group=_FILES,
            help="Draw the first 64 images and their predictions into this PNG file.",
        ),
    ] = None,
    heatmap: Annotated[
        Path | None,
        Parameter(
            group=_FILES,
            help="Draw where each image speaks for the predicted class, a PNG file for each, "
            "into this new folder. Needs captum.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        Parameter(
            group=_FILES,
            negative="",
            help="Go on where a run that was interrupted left the file of --csv or --jsonl; give "
            "all else as before. The file will be the same to the byte.",
        ),
    ] = False,
    cluster: Annotated[str | None, Parameter(help=CLUSTER)] = None,
    json_: Json = False,
    device: Device = "auto",
    module: Module = None,
) -> None:
    """Predict the class of images.

    Every input gets a row, in order; for one that cannot be used, the row says why. Any number of
    images can be given: only a few are in memory at a time.

    Parameters
    ----------
    model
        A run folder or a model file.
    """
    from onsight_explain.spinning import choose_spinning

    choose_spinning()  # before torch loads
    from onsight.inference.listing import list_predictions
    from onsight.inference.rows.output_options import OutputOptions

    options = OutputOptions(
        csv, jsonl, parquet, json_, top, min_confidence, save_grid, heatmap, resume
    )
    if cluster:
        from onsight.cluster.inference import predict_on_cluster

        predict_on_cluster(cluster, model, inputs, options, device, module)
        return
    list_predictions(model, inputs, options, device=device, module=module)
