"""The command `onsight export`."""

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from onsight.commands.options import CacheFolder, DataFormat, Json, Member, Model, Module


def export(
    model: Model,
    /,
    *,
    to: Annotated[
        str,
        Parameter(
            help="onnx: runs anywhere with onnxruntime, and with onsight predict. torch-export: "
            "runs in torch, without your code. web: onnx in a folder with a page that classifies "
            "in the browser, offline."
        ),
    ] = "onnx",
    out: Annotated[
        Path | None,
        Parameter(
            help="File or, for web, new folder to write. Default: RUN/export/model.onnx, "
            "int8.onnx, web, ..."
        ),
    ] = None,
    on: Annotated[
        str | None,
        Parameter(
            help="Labelled images to verify the export on, in any form that `onsight train` "
            "accepts; those that the model was trained on are excluded, unless there are no "
            "others. Default: the images of the run."
        ),
    ] = None,
    int8: Annotated[
        bool,
        Parameter(
            negative="",
            help="Quantize to 8-bit integers: smaller, often faster, slightly less accurate. Only "
            "for onnx.",
        ),
    ] = False,
    max_loss: Annotated[
        float,
        Parameter(
            help="Maximum loss of accuracy with --int8, in points, at the upper end of its 95% "
            "interval."
        ),
    ] = 1.0,
    module: Module = None,
    member: Member = "",
    data_format: DataFormat = "auto",
    cache_folder: CacheFolder = "",
    json_: Json = False,
) -> None:
    """Export a model for other runtimes, and verify it on held-out images.

    The exported model takes images as bytes, uint8 (B, H, W, C), in the size that it was trained
    on, and returns probabilities: resizing, normalization and temperature are included. It is
    written only if its probabilities are within 0.001 of torch's on every held-out image, or on
    the training images where none were held out. The agreement, accuracy, speed and sizes are
    printed, and stored next to it as FILE.proof.json; README.md shows how to use it.
    """
    from onsight.export.export import export as export_model
    from onsight.export.to_web import export_web
    from onsight.report.console import Reporter

    options: dict[str, Any] = {
        "on": on,
        "int8": int8,
        "max_loss": max_loss,
        "module": module,
        "member": member,
        "data_format": data_format,
        "cache_folder": cache_folder,
        "reporter": Reporter(),
    }
    paths = {}
    if to == "web":
        exported, folder = export_web(model, out, **options)
        paths["page"] = str(folder / "index.html")
    else:
        exported = export_model(model, to=to, out=out, **options)
    if json_:
        print(json.dumps({**exported.facts, "out": str(exported.path), **paths}))
        return
    for line in (*exported.lines(), *(f"{name}: {path}" for name, path in paths.items())):
        print(line)
