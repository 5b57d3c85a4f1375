"""The command `onsight predict`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onsight.commands.options import Device, Json, Module


def predict(
    model: Path,
    /,
    *paths: str,
    csv: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            help="Write a row for every input to this file; - for stdout.",
        ),
    ] = None,
    save_grid: Annotated[
        Path | None,
        Parameter(help="Draw the first 64 pictures and their predictions into this PNG file."),
    ] = None,
    heatmap: Annotated[
        Path | None,
        Parameter(
            help="Draw where each picture speaks for the predicted class, a PNG file for each, "
            "into this new folder. Needs captum."
        ),
    ] = None,
    device: Device = "auto",
    module: Module = None,
    json_: Json = False,
) -> None:
    """Predict the class of pictures.

    Every input gets a row; for one that cannot be used, the row says why.

    Parameters
    ----------
    model
        A run folder or a model file.
    paths
        Pictures, or folders of pictures.
    """
    from onsight.inference.listing import list_predictions

    list_predictions(
        model,
        paths,
        csv=csv,
        grid=save_grid,
        heat=heatmap,
        device=device,
        module=module,
        as_json=json_,
    )
