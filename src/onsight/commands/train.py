"""The command `onsight train`."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from onsight.commands.options import CLUSTER, DATA, RUN, ConfigFile, Json, Recipe, given
from onsight.commands.results import show_results
from onsight.config import Config, read_about
from onsight.errors import AbsentData, ConfigError

_DATA_OR_RECIPE = f"{DATA} Optional with --recipe, which names its own."


def train(
    data: Annotated[str | None, Parameter(help=_DATA_OR_RECIPE)] = None,
    *,
    out: Annotated[
        Path | None, Parameter(group=RUN, help="Run folder to create. Default: runs/NAME.")
    ] = None,
    recipe: Recipe = None,
    config: ConfigFile = None,
    resume: Annotated[
        bool, Parameter(group=RUN, negative="", help="Continue the stopped run in --out.")
    ] = False,
    cluster: Annotated[str | None, Parameter(group=RUN, help=CLUSTER)] = None,
    json_: Annotated[Json, Parameter(group=RUN)] = False,
    fields: Annotated[Config | None, Parameter(name="*")] = None,
) -> None:
    """Train a classifier and report how good it is for every class."""
    chosen = _choose_data(data, recipe)  # before torch, which takes a second to load
    from onsight_explain.spinning import choose_spinning
    from onsight_explain.uptime import seconds_since_start

    choose_spinning()  # before torch loads
    asked: dict[str, Any] = {"out": out, "resume": resume, "recipe": recipe, "config_file": config}
    try:
        if cluster:
            from onsight.cluster.train import train_on_cluster

            spent = seconds_since_start()
            run = train_on_cluster(chosen, cluster, spent_seconds=spent, **asked, **given(fields))
        else:
            from onsight.training.run import train as train_run

            # a budget counts loading torch too
            run = train_run(chosen, spent=seconds_since_start, **asked, **given(fields))
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
    show_results(run.results, json_, run=run.path, model=run.model, report=run.report)


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
