"""One short function a command: parse, call, print."""

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from onsight.config import Config

_RUN = Group("Run", sort_key=0)
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
    data: str,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(group=_RUN, help="Run folder to make. Default: runs/NAME.")
    ] = None,
    recipe: Annotated[
        str | None, Parameter(group=_RUN, help="A ready-made config; see `onsight recipes`.")
    ] = None,
    config: Annotated[
        Path | None, Parameter(group=_RUN, help="A TOML file such as a run's config.toml.")
    ] = None,
    resume: Annotated[
        bool, Parameter(group=_RUN, negative="", help="Go on with the stopped run in --out.")
    ] = False,
    json_: Annotated[Json, Parameter(group=_RUN)] = False,
    fields: Annotated[Config | None, Parameter(name="*")] = None,
) -> None:
    """Train a classifier and report how good it is for every class.

    Parameters
    ----------
    data
        A folder of class folders (with or without train/val/test), a zip or tar of one, a
        CSV, JSONL or Parquet manifest, an IDX or CIFAR folder, a name such as cifar10,
        or demo.
    """
    from onsight.training.run import train as train_run

    run = train_run(
        data,
        out=out,
        resume=resume,
        recipe=recipe,
        config_file=config,
        **_given(fields),
    )
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

    list_predictions(model, paths, csv=csv, device=device, module=module, as_json=json_)


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
    """List the ready-made configs for --recipe."""
    from onsight.config import recipe_names

    for name in recipe_names():
        print(name)


def report(run: Path, /) -> None:
    """Write a run's report.html again from the files in its folder.

    Parameters
    ----------
    run
        A run folder.
    """
    from onsight.report.html import write_report

    print(write_report(run))


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
