"""The commands that train: `onsight train`, `sweep` and `verify-resume`."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from onsight.commands.options import (
    DATA,
    RUN,
    Cluster,
    ConfigFile,
    Json,
    Recipe,
    Verbose,
    given_fields,
)
from onsight.config import MACHINE, Config
from onsight.config_files import read_about
from onsight.errors import ConfigError, MissingDataset
from onsight.text import resume_hint

_DATA_OR_RECIPE = f"{DATA} Optional with --recipe, which supplies a dataset."

Settings = Annotated[Config | None, Parameter(name="*")]
RunJson = Annotated[Json, Parameter(group=RUN)]
RunVerbose = Annotated[Verbose, Parameter(group=RUN)]


def train(
    data: Annotated[str | None, Parameter(help=_DATA_OR_RECIPE, show=True)] = None,
    *,
    out: Annotated[
        Path | None, Parameter(group=RUN, help="Run folder to create. Default: runs/NAME.")
    ] = None,
    recipe: Recipe = None,
    config: ConfigFile = None,
    resume: Annotated[
        bool,
        Parameter(group=RUN, negative="", help="Continue the stopped run in --out."),
    ] = False,
    cluster: Annotated[Cluster, Parameter(group=MACHINE)] = None,
    json_: RunJson = False,
    verbose: RunVerbose = False,
    settings: Settings = None,
) -> None:
    """Train an image classifier and report its accuracy for every class."""
    if resume and data is None and recipe is None:
        raise ConfigError(f"no DATA: {resume_hint(out or 'FOLDER')}, and with its DATA")
    chosen = _choose_data(data, recipe)  # before torch, which takes a second to load
    from onsight_explain.python_process import seconds_since_start

    options: dict[str, Any] = {"out": out, "resume": resume, "recipe": recipe, "verbose": verbose}
    options |= {"config_file": config, **given_fields(settings)}
    try:
        if cluster:
            from onsight.cluster.train import train_on_cluster

            spent = seconds_since_start()
            run = train_on_cluster(chosen, cluster, spent_seconds=spent, **options)
        else:
            from onsight.training.run import train as train_run

            # A budget includes the time to load torch.
            run = train_run(chosen, spent=seconds_since_start, **options)
    except MissingDataset as error:
        if recipe is None:
            raise
        others = read_about(recipe)["stand_in"]
        raise MissingDataset(
            f"{error}\nIf that folder is elsewhere, add --data FOLDER. "
            f"To try the recipe on other data, use {others}"
        ) from error
    if run.rank > 0:  # under torchrun or srun, the first rank prints for all
        return
    if json_:
        # The path of the model file replaces the name of the network.
        paths = {"run": str(run.path), "model": str(run.model), "report": str(run.report)}
        print(json.dumps({**run.results, "architecture": run.results["model"], **paths}))
        return
    from onsight.report.console import ResultConsole, print_results

    print_results(run.results, ResultConsole(), is_brief=not verbose)
    print(f"report: {run.report}")
    path, network = str(run.path), str(run.results["model"])
    words = [path, "--module", network] if ":" in network else [path]
    print("next: onsight predict", shlex.join(words), "IMAGES")
    print("      onsight serve", shlex.join(words))
    print("      onsight export", shlex.join(words))


def sweep(
    data: Annotated[str, Parameter(help=DATA, show=True)],
    *,
    try_: Annotated[
        tuple[str, ...],
        Parameter(
            name="--try",
            negative="",
            group=RUN,
            help="A setting of `onsight train` and its values, such as learning_rate=0.001,0.003. "
            "With several --try, every combination is trained.",
        ),
    ] = (),
    out: Annotated[
        Path | None, Parameter(group=RUN, help="Folder to create. Default: sweeps/NAME.")
    ] = None,
    resume: Annotated[
        bool,
        Parameter(group=RUN, negative="", help="Continue the stopped sweep in --out."),
    ] = False,
    cluster: Annotated[
        str | None,
        Parameter(
            group=RUN,
            help="Run with Ray Tune: ray://HOST:PORT or HOST:PORT, or auto for the one in "
            "RAY_ADDRESS, or else one on this machine. Default: run sequentially on this machine.",
        ),
    ] = None,
    recipe: Recipe = None,
    config: ConfigFile = None,
    json_: RunJson = False,
    verbose: RunVerbose = False,
    settings: Settings = None,
) -> None:
    """Train every combination of some settings and compare the results.

    Try `onsight sweep demo --try learning_rate=0.001,0.003 --try model=lenet,compact --epochs 3`.

    The winner is selected on validation images. Its accuracy and its lead over every other run are
    measured on test images, which play no part in the selection. Any other `onsight train`
    option is accepted and applies to every run.
    """
    if resume and out is None:
        raise ConfigError("--resume needs --out with the folder of the sweep to continue")
    from onsight.sweeper.sweep import sweep as run_sweep

    result = run_sweep(
        data,
        try_,
        out=out,
        resume=resume,
        cluster=cluster,
        recipe=recipe,
        config_file=config,
        verbose=verbose,
        **given_fields(settings),
    )
    if json_:
        print(json.dumps(result.facts()))
        return
    print(result)
    print(f"sweep: {result.path}")
    if result.page:
        print(f"page: {result.page}")


def verify_resume(
    data: Annotated[str, Parameter(help=DATA, show=True)],
    *,
    kills: Annotated[
        int,
        Parameter(
            group=RUN, validator=Number(gte=1, lte=1000), help="How many times to kill the run."
        ),
    ] = 3,
    recipe: Recipe = None,
    config: ConfigFile = None,
    json_: RunJson = False,
    settings: Settings = None,
) -> None:
    """Verify that a run that is killed and resumed has the same result, bit for bit.

    Trains twice on a few of your images: once undisturbed, and once killed without warning
    (SIGKILL) at random times and resumed each time. Weights, optimizer, metrics and every
    prediction are then compared. The exit code is 0 if all are equal; otherwise it is 1, the
    differences are listed, and both runs are kept.

    Defaults: --model compact, --epochs 2, --train-images 512, --batch-size 32, --folds 1. Other
    `onsight train` options are accepted, to verify the settings that you use, except for --budget,
    --checkpoints, --model auto (name one network) and frozen networks, which make no steps. Your
    files are never modified; both runs use a temporary folder. Takes about 15 seconds, plus 5
    seconds per kill.
    """
    from onsight.training.verify_resume import verify_resume as verify

    result = verify(
        data,
        kills,
        lambda line: print(line, file=sys.stderr),
        recipe=recipe,
        config_file=config,
        **given_fields(settings),
    )
    if json_:
        print(json.dumps(result.facts()))
    else:
        print("\n".join(result.lines()))
    if not result.equal:
        raise SystemExit(1)


def _choose_data(data: str | None, recipe: str | None) -> str:
    """Return DATA, falling back to the recipe's dataset. Raises ConfigError if there is neither."""
    if data is not None:
        return data
    if recipe is None:
        raise ConfigError(
            "no DATA to train on. Try one of:\n"
            "  onsight train FOLDER         a folder with a subfolder of images for each class\n"
            "  onsight train demo           a small built-in example\n"
            "  onsight train --recipe NAME  a name from `onsight recipes`\n"
            "`onsight train --help` lists all forms of DATA."
        )
    return read_about(recipe)["data"]
