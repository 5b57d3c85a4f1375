"""Options that several commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from onsight.config import Config

RUN = Group("Run", sort_key=0, default_parameter=Parameter(show=True))
OUTPUT = Group("Output", sort_key=1)
READING = Group("Reading DATA", sort_key=2)
MODEL = Group("Model", sort_key=3)

DATA = (
    "A folder of class folders (with or without train/val/test), a zip or tar of one, a CSV, "
    "JSONL or Parquet manifest, an export of Label Studio, CVAT or Roboflow, Hugging Face Parquet, "
    "WebDataset shards, an IDX or CIFAR folder, a name such as cifar10, or demo."
)
Model = Annotated[Path, Parameter(help="A run folder or a model file.")]
Images = Annotated[str, Parameter(help="Images, or folders of images.")]
Recipe = Annotated[
    str | None, Parameter(group=RUN, help="A ready-made config from `onsight recipes`.")
]
ConfigFile = Annotated[
    Path | None,
    Parameter(group=RUN, help="A TOML file with settings, such as the config.toml of a run."),
]
Json = Annotated[
    bool,
    Parameter(
        name="--json",
        negative="",
        help="Print the result as one JSON object on stdout.",
    ),
]
Cluster = Annotated[
    str | None,
    Parameter(
        help="Run on a Ray cluster: ray://HOST:PORT or HOST:PORT, or auto for the one in "
        "RAY_ADDRESS, or else one on this machine. Requires onsight[cluster]."
    ),
]
DataFormat = Annotated[str, Parameter(help="Format of DATA; auto detects it.")]
CacheFolder = Annotated[
    str,
    Parameter(
        help="Cache for decoded images; none disables it. Default: $ONSIGHT_CACHE, or "
        "~/.cache/onsight.",
    ),
]
Device = Annotated[str, Parameter(help="auto, cpu, cuda, cuda:1, xpu or mps.")]
Module = Annotated[
    str | None,
    Parameter(
        help="package.module:callable that makes the network, for a model with your own network."
    ),
]

Member = Annotated[
    str,
    Parameter(
        help="For a blend of several networks: use only the one of this name.",
    ),
]


@Parameter(name="*", group=READING)
@dataclass(frozen=True)
class FormatOptions:
    """How to read DATA where that is not obvious."""

    data_format: DataFormat = "auto"
    label: Annotated[
        str,
        Parameter(help="Column with the labels, if a manifest has several columns."),
    ] = ""
    label_from: Annotated[
        str,
        Parameter(
            help="Regular expression that extracts each image's label from its path.",
        ),
    ] = ""
    crop_boxes: Annotated[
        bool,
        Parameter(
            negative="",
            help="Make each box of COCO, Pascal VOC or CVAT annotations a separate image.",
        ),
    ] = False


@Parameter(name="*", group=READING)
@dataclass(frozen=True)
class ReadingOptions(FormatOptions):
    """How to read DATA, and where to cache the decoded images."""

    cache_folder: CacheFolder = ""


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True)
class ModelOptions:
    """The device that a model runs on, its network if that is the user's, and which of a blend."""

    device: Device = "auto"
    module: Module = None
    member: Member = ""


def given_fields(config: Config | None) -> dict[str, Any]:
    """Return the fields of a config that were set on the command line."""
    return config.model_dump(include=config.model_fields_set) if config else {}


Verbose = Annotated[
    bool,
    Parameter(
        negative="",
        help="Print every choice, every epoch and the result of every class.",
    ),
]
