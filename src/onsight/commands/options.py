"""The options that several commands share, with their help."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from onsight.config import Config

RUN = Group("Run", sort_key=0)
DATA = (
    "A folder of class folders (with or without train/val/test), a zip or tar of one, a CSV, "
    "JSONL or Parquet manifest, an export of Label Studio, CVAT or Roboflow, Hugging Face Parquet, "
    "WebDataset shards, an IDX or CIFAR folder, a name such as cifar10, or demo."
)
CLUSTER = (
    "Work on a Ray cluster: ray://HOST:PORT or HOST:PORT; auto: the one that RAY_ADDRESS names, "
    "else one on this machine. Needs onsight[cluster]."
)
Recipe = Annotated[
    str | None, Parameter(group=RUN, help="A ready-made config from `onsight recipes`.")
]
ConfigFile = Annotated[
    Path | None,
    Parameter(group=RUN, help="A TOML file with settings, such as the config.toml of a run."),
]
Json = Annotated[
    bool,
    Parameter(name="--json", negative="", help="Print the result as one JSON object on stdout."),
]
Module = Annotated[
    str | None,
    Parameter(
        help="package.module:callable that makes your own network, for a model that needs it."
    ),
]
Device = Annotated[str, Parameter(help="auto, cpu, cuda, cuda:1, xpu or mps.")]
DataFormat = Annotated[str, Parameter(help="The format of DATA. auto: detect it.")]
Label = Annotated[str, Parameter(help="The column of labels, if the manifest has several.")]
CropBoxes = Annotated[
    bool,
    Parameter(
        negative="",
        help="What is inside each box of COCO, Pascal VOC or CVAT annotations is an image.",
    ),
]
LabelFrom = Annotated[
    str,
    Parameter(help="A regular expression that finds each image's label in its path."),
]
CacheFolder = Annotated[
    str,
    Parameter(
        help="Where decoded images are kept for the next run; none: keep nothing. "
        "Empty: $ONSIGHT_CACHE or ~/.cache/onsight."
    ),
]


def given(fields: Config | None) -> dict[str, Any]:
    """The fields of a config that were given on the command line."""
    return fields.model_dump(include=fields.model_fields_set) if fields else {}
