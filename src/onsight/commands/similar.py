"""The command `onsight similar`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onsight.commands.options import CacheFolder, DataFormat, Device, Json, Module


def similar(
    model: Path,
    /,
    *paths: str,
    among: Annotated[
        str | None,
        Parameter(
            help="The images to search: a folder, or any form that `onsight train` takes. "
            "Default: those that the model was trained with."
        ),
    ] = None,
    top: Annotated[int, Parameter(help="How many images to find for each.")] = 5,
    save_grid: Annotated[
        Path | None,
        Parameter(help="Draw the first 16 images and what was found into this PNG file."),
    ] = None,
    device: Device = "auto",
    data_format: DataFormat = "auto",
    cache_folder: CacheFolder = "",
    module: Module = None,
    json_: Json = False,
) -> None:
    """Find the images that look most like others.

    Images are compared by the features that the network's last layer decides by: their cosine
    similarity, 1 for equal ones and about 0 for unrelated ones. Copies are marked as identical.

    Parameters
    ----------
    model
        A run folder or a model file.
    paths
        Images, or folders of images.
    """
    from onsight_explain.spinning import choose_spinning

    choose_spinning()  # before torch loads
    from onsight.inference.list_similar import list_similar

    list_similar(
        model,
        paths,
        among=among,
        top=top,
        grid=save_grid,
        device=device,
        data_format=data_format,
        cache_folder=cache_folder,
        module=module,
        as_json=json_,
    )
