"""One short function a command: parse, call, print."""

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from onsight.config import Config, TestViews, config_layers, make_config, read_about, recipe_names
from onsight.errors import AbsentData, ConfigError

_RUN = Group("Run", sort_key=0)
_DATA = (
    "A folder of class folders (with or without train/val/test), a zip or tar of one, a CSV, "
    "JSONL or Parquet manifest, an IDX or CIFAR folder, a name such as cifar10, or demo. A "
    "--recipe names its own, so that with one it may be left out."
)
Recipe = Annotated[
    str | None, Parameter(group=_RUN, help="A ready-made config; see `onsight recipes`.")
]
ConfigFile = Annotated[
    Path | None, Parameter(group=_RUN, help="A TOML file such as a run's config.toml.")
]
Json = Annotated[
    bool, Parameter(name="--json", negative="", help="Print one JSON object on stdout.")
]
Module = Annotated[
    str | None,
    Parameter(help="package.module:callable of a network of your own; a file never names code."),
]
Device = Annotated[str, Parameter(help="auto, cpu, cuda, cuda:1, xpu, mps.")]
Layout = Annotated[str, Parameter(help="What DATA is, when it should not be found out.")]
Cache = Annotated[bool, Parameter(help="Keep decoded pictures on disk for the next time.")]


def train(
    data: Annotated[str | None, Parameter(help=_DATA)] = None,
    *,
    out: Annotated[
        Path | None, Parameter(group=_RUN, help="Run folder to make. Default: runs/NAME.")
    ] = None,
    recipe: Recipe = None,
    config: ConfigFile = None,
    resume: Annotated[
        bool, Parameter(group=_RUN, negative="", help="Go on with the stopped run in --out.")
    ] = False,
    json_: Annotated[Json, Parameter(group=_RUN)] = False,
    fields: Annotated[Config | None, Parameter(name="*")] = None,
) -> None:
    """Train a classifier and report how good it is for every class."""
    chosen = _choose_data(data, recipe)  # before torch, which takes a second to load
    from onsight.hardware.usage import seconds_since_start
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
            f"{error}\nThe recipe takes that folder as --data FOLDER, and runs on {others}"
        ) from error
    if run.rank > 0:  # under torchrun or srun the first rank prints for all
        return
    results = run.results | {"architecture": run.results["model"]}
    _show_results(results, json_, run=run.path, model=run.model, report=run.report)


def evaluate(
    model: Path,
    data: str,
    /,
    *,
    device: Device = "auto",
    layout: Layout = "auto",
    cache: Cache = True,
    module: Module = None,
    csv: Annotated[Path | None, Parameter(help="Write a row for every picture here.")] = None,
    views: Annotated[
        TestViews,
        Parameter(
            help="Tell the accuracy of several views of each picture too, beside the plain one."
        ),
    ] = "one",
    json_: Json = False,
) -> None:
    """Say how good a model is on DATA, leaving out pictures that it was trained on.

    Parameters
    ----------
    model
        A run folder or a model file.
    data
        Labelled pictures, in any form that `onsight train` takes.
    """
    from onsight.inference.evaluate import evaluate as evaluate_model
    from onsight.report.console import Story

    story = Story()
    results = evaluate_model(
        model,
        data,
        device=device,
        layout=layout,
        cache=cache,
        module=module,
        csv=csv,
        views=views,
        story=story,
    )
    for problem in results.pop("problem_rows"):
        story.warn(f"not used: {problem.path}: {problem.reason}")
    if results["seen"]:
        story.say(f"{results['seen']:,} pictures left out: they trained or chose the model")
    _show_results(results, json_)


def predict(
    model: Path,
    /,
    *paths: str,
    csv: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            help="Write a row for every input to this file, or - for stdout.",
        ),
    ] = None,
    save_grid: Annotated[
        Path | None,
        Parameter(help="Draw the first 64 pictures with their predictions into this PNG file."),
    ] = None,
    device: Device = "auto",
    module: Module = None,
    json_: Json = False,
) -> None:
    """Predict the class of pictures; every input gets a row, a broken one its reason.

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


def models(name_contains: str = "", /) -> None:
    """List the models by name: Onsight's own first, then timm's.

    Parameters
    ----------
    name_contains
        Show only names that contain this.
    """
    from onsight.models.catalog import model_names

    for name in model_names():
        if name_contains in name:
            print(name)


def recipes() -> None:
    """Say what each ready-made config for --recipe reproduces, there and here."""
    from rich.console import Console

    from onsight.report.recipes import print_recipe

    console = Console(highlight=False, soft_wrap=True)
    for name in recipe_names():
        print_recipe(name, read_about(name), console)


def report(run: Path, /) -> None:
    """Write a run's report.html again from the files in its folder.

    Parameters
    ----------
    run
        A run folder.
    """
    from onsight.report.html import write_report

    print(write_report(run))


def _choose_data(data: str | None, recipe: str | None) -> str:
    """DATA as given, else that of the recipe. Raises ConfigError."""
    if data is not None:
        return data
    if recipe is None:
        raise ConfigError(
            "no DATA to train on. Type `onsight train FOLDER` with a folder of class folders, "
            "`onsight train demo` to try it, or `onsight train --recipe NAME` (`onsight recipes` "
            "lists them). All that DATA may be: `onsight train --help`"
        )
    return read_about(recipe)["data"]


def explain(
    data: str,
    /,
    *,
    compare: Annotated[
        str,
        Parameter(
            group=_RUN,
            help="Devices such as cpu,cuda:0; cpu alone: its threads and precisions. "
            "Empty: cpu and every accelerator.",
        ),
    ] = "",
    batch_sizes: Annotated[
        str,
        Parameter(group=_RUN, help="Such as 4,32. Empty: 4, 32, 128, 512 and the config's own."),
    ] = "",
    recipe: Recipe = None,
    config: ConfigFile = None,
    json_: Annotated[Json, Parameter(group=_RUN)] = False,
    fields: Annotated[Config | None, Parameter(name="*")] = None,
) -> None:
    """Say which device trains fastest on DATA at which batch size, and why.

    Parameters
    ----------
    data
        Labelled pictures, in any form that `onsight train` takes.
    """
    from rich.console import Console

    from onsight.explain.compare.measure import compare as compare_devices
    from onsight.explain.compare.show import facts, print_comparison
    from onsight.explain.compare.sizes import read_batch_sizes

    comparison = compare_devices(
        data,
        make_config(*config_layers(recipe, config, _given(fields))),
        compare.split(",") if compare else (),
        read_batch_sizes(batch_sizes) if batch_sizes else (),
    )
    if json_:
        print(json.dumps(facts(comparison)))
    else:
        print_comparison(comparison, Console(highlight=False, markup=False))


def _given(fields: Config | None) -> dict[str, Any]:
    """The fields that were named on the command line."""
    return fields.model_dump(include=fields.model_fields_set) if fields else {}


def _show_results(results: dict[str, Any], as_json: bool, **places: Path) -> None:
    """Print results and the places of what was written, for people or as one JSON object."""
    from rich.console import Console

    from onsight.report.console import print_results

    if as_json:
        print(json.dumps(results | {name: str(path) for name, path in places.items()}))
        return
    console = Console(highlight=False, soft_wrap=True)
    print_results(results, console)
    for name, path in places.items():
        console.print(f"{name}: {path}")
