"""One short function per command: parse, call, print."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from onsight.config import Config, Tta, read_about, recipe_names
from onsight.errors import AbsentData, ConfigError

if TYPE_CHECKING:
    from onsight.evaluation.results import Results

_RUN = Group("Run", sort_key=0)
_COMPARE = Group("Comparing devices", sort_key=1)
_DATA = (
    "A folder of class folders (with or without train/val/test), a zip or tar of one, a CSV, "
    "JSONL or Parquet manifest, an export of Label Studio, CVAT or Roboflow, Hugging Face Parquet, "
    "WebDataset shards, an IDX or CIFAR folder, a name such as cifar10, or demo."
)
_DATA_OR_RECIPE = f"{_DATA} Optional with --recipe, which names its own."
Recipe = Annotated[
    str | None, Parameter(group=_RUN, help="A ready-made config from `onsight recipes`.")
]
ConfigFile = Annotated[
    Path | None,
    Parameter(group=_RUN, help="A TOML file with settings, such as the config.toml of a run."),
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
        help="What is inside each box of COCO, Pascal VOC or CVAT annotations is a picture.",
    ),
]
LabelFrom = Annotated[
    str,
    Parameter(help="A regular expression that finds each picture's label in its path."),
]
CacheFolder = Annotated[
    str,
    Parameter(
        help="Where decoded pictures are kept for the next run; none: keep nothing. "
        "Empty: $ONSIGHT_CACHE or ~/.cache/onsight."
    ),
]


def train(
    data: Annotated[str | None, Parameter(help=_DATA_OR_RECIPE)] = None,
    *,
    out: Annotated[
        Path | None, Parameter(group=_RUN, help="Run folder to create. Default: runs/NAME.")
    ] = None,
    recipe: Recipe = None,
    config: ConfigFile = None,
    resume: Annotated[
        bool, Parameter(group=_RUN, negative="", help="Continue the stopped run in --out.")
    ] = False,
    json_: Annotated[Json, Parameter(group=_RUN)] = False,
    fields: Annotated[Config | None, Parameter(name="*")] = None,
) -> None:
    """Train a classifier and report how good it is for every class."""
    chosen = _choose_data(data, recipe)  # before torch, which takes a second to load
    from onsight.hardware.spinning import choose_spinning
    from onsight.hardware.usage import seconds_since_start

    choose_spinning()  # before torch loads
    from onsight.training.run import train as train_run

    try:
        run = train_run(
            chosen,
            out=out,
            resume=resume,
            recipe=recipe,
            config_file=config,
            spent=seconds_since_start,  # a budget counts loading torch too
            **_given(fields),
        )
    except AbsentData as error:
        if recipe is None:
            raise
        others = read_about(recipe)["stand_in"]
        raise AbsentData(
            f"{error}\nTo use that folder from elsewhere, add --data FOLDER. "
            f"The recipe also runs on {others}"
        ) from error
    if run.rank > 0:  # under torchrun or srun the first rank prints for all
        return
    _show_results(run.results, json_, run=run.path, model=run.model, report=run.report)


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
    csv: Annotated[
        Path | None, Parameter(help="Write a row for every picture to this file.")
    ] = None,
    tta: Annotated[
        Tta,
        Parameter(
            help="Test-time augmentation: also report the accuracy of the mean over several views "
            "of each picture."
        ),
    ] = "one",
    json_: Json = False,
) -> None:
    """Evaluate a model on DATA, leaving out pictures that it was trained on.

    Parameters
    ----------
    model
        A run folder or a model file.
    data
        Labelled pictures, in any form that `onsight train` takes.
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
        left_out = plural(results["seen"], "picture")
        reporter.say(f"{left_out} left out: the model was trained or selected with them")
    _show_results(results, json_)


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
        model, paths, csv=csv, grid=save_grid, device=device, module=module, as_json=json_
    )


def embed(
    model: Path,
    /,
    *paths: str,
    out: Annotated[
        Path,
        Parameter(help="The file to write: NAME.npz for NumPy, or NAME.parquet for tables."),
    ],
    device: Device = "auto",
    module: Module = None,
    json_: Json = False,
) -> None:
    """Write the features of pictures to a file, for other programs.

    Features are the numbers that the network's last layer decides by: alike pictures have alike
    features. The file also has paths, predicted classes, their probabilities, and the inputs that
    cannot be used with the reason.

    Parameters
    ----------
    model
        A run folder or a model file.
    paths
        Pictures, or folders of pictures.
    """
    from onsight.hardware.spinning import choose_spinning

    choose_spinning()  # before torch loads
    from onsight.inference.embed import embed_files

    embed_files(model, paths, out, device=device, module=module, as_json=json_)


def similar(
    model: Path,
    /,
    *paths: str,
    among: Annotated[
        str | None,
        Parameter(
            help="The pictures to search: a folder, or any form that `onsight train` takes. "
            "Default: those that the model was trained with."
        ),
    ] = None,
    top: Annotated[int, Parameter(help="How many pictures to find for each.")] = 5,
    save_grid: Annotated[
        Path | None,
        Parameter(help="Draw the first 16 pictures and what was found into this PNG file."),
    ] = None,
    device: Device = "auto",
    data_format: DataFormat = "auto",
    cache_folder: CacheFolder = "",
    module: Module = None,
    json_: Json = False,
) -> None:
    """Find the pictures that look most like others.

    Pictures are compared by the features that the network's last layer decides by: their cosine
    similarity, 1 for equal ones and about 0 for unrelated ones. Copies are marked as identical.

    Parameters
    ----------
    model
        A run folder or a model file.
    paths
        Pictures, or folders of pictures.
    """
    from onsight.hardware.spinning import choose_spinning

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


def check(
    data: Annotated[str, Parameter(help=_DATA)],
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
            help="Write a list to train from, without unusable files, copies and pictures under "
            "two labels, to this new CSV file."
        ),
    ] = None,
    image_size: Annotated[
        str,
        Parameter(
            help="Size in pixels to look at pictures with; `onsight train` with the same "
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
    """Find what is wrong with pictures before training: copies, leaks, wrong labels, bad files.

    Nothing of yours is changed. The page shows the pictures side by side, the gravest first;
    check.csv has a row for each finding.
    """
    from onsight.hardware.spinning import choose_spinning

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


def models(pattern: str = "", /, *, json_: Json = False) -> None:
    """List models with their cost, and say whose weights are here without a network.

    Parameters
    ----------
    pattern
        Show names that contain this text, or match it if it has * or ?; '*' shows all. Empty:
        Onsight's own models, those with weights here, and some of timm's worth trying.
    """
    from rich.console import Console

    from onsight.report.model_list import list_models

    list_models(pattern, json_, Console(highlight=False, soft_wrap=True))


def recipes() -> None:
    """List the ready-made configs for --recipe and the results they reproduce."""
    from rich.console import Console

    from onsight.report.recipes import print_recipe

    console = Console(highlight=False, soft_wrap=True)
    for name in recipe_names():
        print_recipe(name, read_about(name), console)


def report(run: Path, /) -> None:
    """Write report.html of a run again, from the files in its folder.

    Parameters
    ----------
    run
        A run folder.
    """
    from onsight.report.html import write_report

    print(write_report(run))


def compare(
    *runs: Path,
    out: Annotated[
        Path,
        Parameter(help="The page to write, or a folder for its compare.html."),
    ] = Path("compare.html"),
    json_: Json = False,
) -> None:
    """Compare runs picture by picture: which is better, and whether that is more than noise.

    Parameters
    ----------
    runs
        Two or more run folders. What all of them held out is compared.
    """
    from onsight.report.comparison.compare import compare as compare_runs
    from onsight.report.comparison.page import page_place

    page_place(out)  # before the work
    found = compare_runs(*runs)
    page = found.save_page(out)
    if json_:
        print(json.dumps({**found.facts(), "page": str(page)}))
    else:
        print(f"{found}\npage: {page}")


def _choose_data(data: str | None, recipe: str | None) -> str:
    """DATA as given, or that of the recipe. Raises ConfigError."""
    if data is not None:
        return data
    if recipe is None:
        raise ConfigError(
            "no DATA to train on. Type `onsight train FOLDER` with a folder of class folders, "
            "`onsight train demo` to try it out, or `onsight train --recipe NAME` with a name from "
            "`onsight recipes`. `onsight train --help` lists everything that DATA can be"
        )
    return read_about(recipe)["data"]


def explain(
    subject: str,
    /,
    *script_args: str,
    compare: Annotated[
        str | None,
        Parameter(
            group=_COMPARE,
            help="Devices to compare, such as cpu,cuda:0. cpu alone: compare thread counts and "
            "precisions; all: the CPU and every accelerator.",
        ),
    ] = None,
    batch_sizes: Annotated[
        str,
        Parameter(
            group=_COMPARE,
            help="Batch sizes to compare, such as 4,32. Empty: 4, 32, 128, 512 and the config's.",
        ),
    ] = "",
    save_plot: Annotated[
        Path | None, Parameter(group=_COMPARE, help="Draw the comparison into this PNG file.")
    ] = None,
    what_ifs: Annotated[
        bool, Parameter(group=_RUN, help="Try out changes and time each of them.")
    ] = True,
    seconds: Annotated[
        float, Parameter(group=_RUN, help="Seconds of training to measure per run.")
    ] = 4.0,
    limit: Annotated[
        float,
        Parameter(
            group=_RUN,
            help="Longest time for one run of SCRIPT.py, in seconds, including its start.",
        ),
    ] = 120.0,
    twin: Annotated[
        bool,
        Parameter(
            group=_RUN,
            negative="",
            help="Run SCRIPT.py on a GPU simulated on the CPU: which line fails on a GPU, and "
            "which ones make Python wait for it in every step. Needs no GPU; its speed means "
            "nothing. Exit code 1 if it fails.",
        ),
    ] = False,
    recipe: Recipe = None,
    config: ConfigFile = None,
    json_: Annotated[Json, Parameter(group=_RUN)] = False,
    fields: Annotated[Config | None, Parameter(name="*")] = None,
) -> None:
    """Find out what slows down a run or any training script, and what would help.

    Parameters
    ----------
    subject
        A run folder such as runs/pets; or labelled pictures in any form that `onsight train`
        takes, to explain the run it would start; or any PyTorch training script, which is run
        unchanged, as in `onsight explain train.py -- --epochs 3`.
    script_args
        Arguments of the script, after --.
    """
    from onsight.hardware.spinning import choose_spinning

    choose_spinning()  # before torch loads
    from onsight.explain.dispatch import explain_any

    asked = compare is not None or bool(batch_sizes) or save_plot is not None
    explain_any(
        subject,
        list(script_args),
        given=_given(fields),
        layers=(recipe, config),
        compared=(compare or "", batch_sizes, save_plot) if asked else None,
        what_ifs=what_ifs,
        seconds=seconds,
        limit_seconds=limit,
        on_twin=twin,
        as_json=json_,
    )


def doctor(*, json_: Json = False) -> None:
    """Check this machine: what works, what slows down training, and how to fix it."""
    from rich.console import Console

    from onsight.doctor.examine import examine
    from onsight.doctor.line import count
    from onsight.doctor.show import facts, print_lines

    with Console(stderr=True).status("checking this machine") as status:
        lines = examine(tell=lambda topic: status.update(f"checking this machine: {topic}"))
    if json_:
        print(json.dumps(facts(lines)))
    else:
        print_lines(lines, Console(highlight=False))
    if count(lines, "problem"):
        raise SystemExit(1)


def _given(fields: Config | None) -> dict[str, Any]:
    """The fields that were given on the command line."""
    return fields.model_dump(include=fields.model_fields_set) if fields else {}


def _show_results(results: "Results", as_json: bool, **places: Path) -> None:
    """Print the results and what was written where, for people or as one JSON object."""
    from rich.console import Console
    from rich.markup import escape

    from onsight.report.console import print_results

    if as_json:
        written = {name: str(path) for name, path in places.items()}
        if "model" in written:  # the file takes the place of the network's name
            written = {"architecture": results["model"], **written}
        print(json.dumps({**results, **written}))
        return
    console = Console(highlight=False, soft_wrap=True)
    print_results(results, console)
    for name, path in places.items():
        console.print(escape(f"{name}: {path}"))
