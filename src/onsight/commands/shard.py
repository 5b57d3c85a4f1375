"""The command `onsight shard`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onsight.commands.options import DATA, CropBoxes, DataFormat, Json, Label, LabelFrom


def shard(
    data: Annotated[str, Parameter(help=DATA)],
    *,
    out: Annotated[
        str,
        Parameter(
            help="The folder to write: a path, or a URL such as s3://bucket/pets "
            "(pip install 'onsight[remote]')."
        ),
    ],
    shard_megabytes: Annotated[
        float, Parameter(help="The most megabytes of a shard. 100 to 500 suit object stores.")
    ] = 100.0,
    problems: Annotated[
        Path | None,
        Parameter(help="A CSV file for the images that are left out, with their reasons."),
    ] = None,
    data_format: DataFormat = "auto",
    label: Label = "",
    label_from: LabelFrom = "",
    crop_boxes: CropBoxes = False,
    json_: Json = False,
) -> None:
    """Write DATA as WebDataset shards: tar files that object stores read quickly.

    Millions of small files are slow to list, copy and read; a few thousand shards are not. Each
    image keeps its bytes and has its class beside it (000000012.jpg, 000000012.cls); shards are
    named by the split (train-000000.tar) and mixed, so that any few of them are a fair sample; an
    index.json lists them. Nothing of yours is changed.

    Write them once, then train from them wherever you are:

    onsight shard images --out s3://bucket/images

    onsight train s3://bucket/images

    The same command goes on where it was killed.
    """
    from onsight.data.sources.find import ReadOptions
    from onsight.report.shard_data import shard_data

    reading = ReadOptions(data_format, label, label_from, crop_boxes)
    shard_data(data, reading, out, shard_megabytes, problems, as_json=json_)
