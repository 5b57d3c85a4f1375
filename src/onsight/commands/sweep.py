"""The command `onsight sweep`."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onsight.commands.options import DATA, RUN, ConfigFile, Json, Recipe, given
from onsight.config import Config


def sweep(
    data: Annotated[str, Parameter(help=DATA)],
    *,
    try_: Annotated[
        tuple[str, ...],
        Parameter(
            name="--try",
            negative="",
            group=RUN,
            help="A setting of `onsight train` and its values, as learning_rate=0.001,0.003. "
            "Several --try: every combination.",
        ),
    ] = (),
    out: Annotated[
        Path | None, Parameter(group=RUN, help="Folder to create. Default: sweeps/NAME.")
    ] = None,
    resume: Annotated[
        bool, Parameter(group=RUN, negative="", help="Continue the stopped sweep in --out.")
    ] = False,
    cluster: Annotated[
        str | None,
        Parameter(
            group=RUN,
            help="Hand the runs to Ray Tune: auto for the cluster of this machine, ray://HOST:PORT "
            "or HOST:PORT. Default: one after the other, here.",
        ),
    ] = None,
    recipe: Recipe = None,
    config: ConfigFile = None,
    json_: Annotated[Json, Parameter(group=RUN)] = False,
    fields: Annotated[Config | None, Parameter(name="*")] = None,
) -> None:
    """Train every combination of some settings, and say which is best and by how much.

    Try `onsight sweep demo --try learning_rate=0.001,0.003 --try model=lenet,compact --epochs 3`.

    The winner is chosen by validation images; what to expect of it is measured on test images,
    which choose nothing, and there it is compared with every other run. Settings that are not
    tried are given as for `onsight train`, and are the same for all runs.
    """
    from onsight.errors import ConfigError

    if resume and out is None:
        raise ConfigError("--resume needs --out with the folder of the sweep to continue")
    from onsight_explain.spinning import choose_spinning

    choose_spinning()  # before torch loads
    from onsight.sweeper.sweep import sweep as run

    done = run(
        data,
        try_,
        out=out,
        resume=resume,
        cluster=cluster,
        recipe=recipe,
        config_file=config,
        **given(fields),
    )
    if json_:
        print(json.dumps(done.facts()))
    else:
        print(done)
        print(f"sweep: {done.path}")
        if done.page:
            print(f"page: {done.page}")
