"""The commands that run a model on images: `onsight predict`, `embed` and `similar`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from onsight.commands.options import (
    MODEL,
    OUTPUT,
    READING,
    CacheFolder,
    Cluster,
    DataFormat,
    Images,
    Json,
    Model,
    ModelOptions,
)

_CONTENT = Group("Content of a row", sort_key=0)
_WHERE = Group(
    "Output",
    help="Without any of these, a line for each image is printed. "
    "Try: onsight predict runs/pets new/ --csv out.csv",
    sort_key=1,
)
_INPUTS = (
    "Images; folders of images; patterns in quotes, such as 'new/**/*.jpg'; a zip or tar; a "
    "CSV, JSONL or Parquet manifest with a column named path; or - for paths on stdin, one per "
    "line or separated by NUL: find new -name '*.jpg' -print0 | onsight predict runs/pets -"
)


@Parameter(name="*")
@dataclass(frozen=True)
class _PredictOutput:
    """The content and files of the output of `predict`; the same fields as OutputOptions."""

    top: Annotated[
        int | None,
        Parameter(group=_CONTENT, help="Include the N most probable classes."),
    ] = None
    min_confidence: Annotated[
        float | None,
        Parameter(
            group=_CONTENT,
            help="Report `unsure` instead of a class below this probability, from 0 to 1. "
            "The report of the run states how far a model's probabilities are from its accuracy, "
            "on images like those that it was evaluated on.",
        ),
    ] = None
    csv: Annotated[
        str | None,
        Parameter(
            group=_WHERE,
            allow_leading_hyphen=True,
            help="CSV file with a row for every input; - for stdout.",
        ),
    ] = None
    jsonl: Annotated[
        str | None,
        Parameter(
            group=_WHERE,
            allow_leading_hyphen=True,
            help="JSON lines file, with an object for every input; - for stdout.",
        ),
    ] = None
    parquet: Annotated[
        Path | None,
        Parameter(
            group=_WHERE,
            help="Parquet file with a row for every input. Requires onsight[parquet].",
        ),
    ] = None
    as_json: Annotated[Json, Parameter(group=_WHERE)] = False
    grid: Annotated[
        Path | None,
        Parameter(
            name="--save-grid",
            group=_WHERE,
            help="PNG file with the first 64 images and their predictions.",
        ),
    ] = None
    heat: Annotated[
        Path | None,
        Parameter(
            name="--heatmap",
            group=_WHERE,
            help="New folder with a PNG file for each image, showing the regions that support the "
            "predicted class. Requires captum.",
        ),
    ] = None
    resume: Annotated[
        bool,
        Parameter(
            group=_WHERE,
            negative="",
            help="Continue the file of --csv or --jsonl that an interrupted run has left; use the "
            "same other options. The result is byte-identical to that of an uninterrupted run.",
        ),
    ] = False


def predict(
    model: Annotated[
        Path, Parameter(help="A run folder, a model file, or an exported .onnx file.")
    ],
    /,
    *inputs: Annotated[str, Parameter(allow_leading_hyphen=True, help=_INPUTS)],
    output: _PredictOutput = _PredictOutput(),  # frozen
    options: ModelOptions = ModelOptions(),  # noqa: B008  # frozen
    cluster: Annotated[Cluster, Parameter(group=MODEL)] = None,
) -> None:
    """Predict the class of images.

    Every input gets a row, in order; one that cannot be used has the reason in its row. There can
    be any number of images, because only a few are in memory at a time.
    """
    from onsight.inference.predict import OutputOptions, predict_files

    outputs = OutputOptions(**vars(output))
    if cluster:
        from onsight.cluster.predict import predict_on_cluster

        predict_on_cluster(cluster, model, inputs, outputs, **vars(options))
        return
    predict_files(model, inputs, outputs, **vars(options))


def embed(
    model: Model,
    /,
    *paths: Images,
    out: Annotated[
        Path,
        Parameter(
            group=OUTPUT, help="File to write: NAME.npz for NumPy, or NAME.parquet for tables."
        ),
    ],
    json_: Annotated[Json, Parameter(group=OUTPUT)] = False,
    options: ModelOptions = ModelOptions(),  # noqa: B008  # frozen
    cluster: Annotated[Cluster, Parameter(group=MODEL)] = None,
) -> None:
    """Write the features of images to a file, for other programs.

    Features are the input of the network's last layer: similar images have similar features. The
    file also has the paths, the predicted classes and their probabilities, and the inputs that
    could not be used with the reasons.
    """
    if cluster:
        from onsight.cluster.predict import embed_on_cluster

        embed_on_cluster(cluster, model, paths, out, as_json=json_, **vars(options))
        return
    from onsight.inference.embed import embed_files

    embed_files(model, paths, out, as_json=json_, **vars(options))


def similar(
    model: Model,
    /,
    *paths: Images,
    among: Annotated[
        str | None,
        Parameter(
            help="Images to search: a folder, or anything that `onsight train` accepts. "
            "Default: those that the model was trained on."
        ),
    ] = None,
    top: Annotated[int, Parameter(help="How many images to find for each input.")] = 5,
    save_grid: Annotated[
        Path | None,
        Parameter(group=OUTPUT, help="PNG file with the first 16 inputs and what was found."),
    ] = None,
    json_: Annotated[Json, Parameter(group=OUTPUT)] = False,
    data_format: Annotated[DataFormat, Parameter(group=READING)] = "auto",
    cache_folder: Annotated[CacheFolder, Parameter(group=READING)] = "",
    options: ModelOptions = ModelOptions(),  # noqa: B008  # frozen
) -> None:
    """Find the images that look most like others.

    Images are compared by their features, the input of the network's last layer. The number is
    their cosine similarity: 1 for equal images, about 0 for unrelated ones. Copies are marked as
    identical.
    """
    from onsight.inference.similar import print_similar

    print_similar(
        model,
        paths,
        among=among,
        top=top,
        grid=save_grid,
        data_format=data_format,
        cache_folder=cache_folder,
        as_json=json_,
        **vars(options),
    )
