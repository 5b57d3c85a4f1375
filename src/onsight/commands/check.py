"""The command `onsight check`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onsight.commands.options import (
    DATA,
    CacheFolder,
    CropBoxes,
    DataFormat,
    Device,
    Json,
    Label,
    LabelFrom,
)


def check(
    data: Annotated[str, Parameter(help=DATA)],
    *,
    out: Annotated[
        Path | None,
        Parameter(help="Folder for check.csv and check.html. Default: checks/NAME."),
    ] = None,
    quick: Annotated[
        bool,
        Parameter(negative="", help="Do not judge labels, which takes most of the time."),
    ] = False,
    fail_on: Annotated[
        str,
        Parameter(
            help="Exit with code 1 if any of these is found, as leakage,unusable,twins: "
            "leakage (copies on both sides of a split), unusable, twins (all copies), labels, "
            "classes, quality."
        ),
    ] = "",
    ignore: Annotated[
        Path | None,
        Parameter(help="A CSV file with rows of check.csv that you judged right: left out."),
    ] = None,
    write_manifest: Annotated[
        Path | None,
        Parameter(
            help="Write a list to train from, without unusable files, copies and images under "
            "two labels, to this new CSV file."
        ),
    ] = None,
    image_size: Annotated[
        str,
        Parameter(
            help="Size in pixels to look at images with; `onsight train` with the same "
            "--image-size does not decode them again. auto: their own if small, or 128."
        ),
    ] = "auto",
    device: Device = "auto",
    data_format: DataFormat = "auto",
    label: Label = "",
    label_from: LabelFrom = "",
    crop_boxes: CropBoxes = False,
    cache_folder: CacheFolder = "",
    json_: Json = False,
) -> None:
    """Find what is wrong with images before training: copies, leaks, wrong labels, bad files.

    Nothing of yours is changed. The page shows the images side by side, the gravest first;
    check.csv has a row for each finding.
    """
    from onsight_explain.spinning import choose_spinning

    choose_spinning()  # before torch loads
    from onsight.audit.run_check import run_check

    failed = run_check(
        data,
        out=out,
        fail_on=fail_on,
        write_manifest=write_manifest,
        as_json=json_,
        quick=quick,
        ignore=ignore,
        image_size=image_size,
        device=device,
        data_format=data_format,
        label=label,
        label_from=label_from,
        crop_boxes=crop_boxes,
        cache_folder=cache_folder,
    )
    if failed:
        raise SystemExit(1)
