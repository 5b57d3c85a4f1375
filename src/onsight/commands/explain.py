"""The command `onsight explain`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from onsight.commands.options import RUN, ConfigFile, Json, Recipe, given
from onsight.config import Config

_COMPARE = Group("Comparing devices", sort_key=1)


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
        bool, Parameter(group=RUN, help="Try out changes and time each of them.")
    ] = True,
    seconds: Annotated[
        float, Parameter(group=RUN, help="Seconds of training to measure per run.")
    ] = 4.0,
    limit: Annotated[
        float,
        Parameter(
            group=RUN,
            help="Longest time for one run of SCRIPT.py, in seconds, including its start.",
        ),
    ] = 120.0,
    twin: Annotated[
        bool,
        Parameter(
            group=RUN,
            negative="",
            help="Run SCRIPT.py on a GPU simulated on the CPU: which line fails on a GPU, and "
            "which ones make Python wait for it in every step. Needs no GPU; its speed means "
            "nothing. Exit code 1 if it fails.",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        Parameter(
            group=RUN,
            help="Write the measured steps into this file as a timeline, to be opened at "
            "ui.perfetto.dev or in chrome://tracing.",
        ),
    ] = None,
    recipe: Recipe = None,
    config: ConfigFile = None,
    json_: Annotated[Json, Parameter(group=RUN)] = False,
    fields: Annotated[Config | None, Parameter(name="*")] = None,
) -> None:
    """Find out what slows down a run or any training script, and what would help.

    Parameters
    ----------
    subject
        A run folder such as runs/pets; or labelled pictures in any form that `onsight train`
        takes, to explain the run it would start; or any PyTorch training script or notebook, which
        is run unchanged, as in `onsight explain train.py -- --epochs 3`. With --ranks 2, a script
        is started as torchrun would.
    script_args
        Arguments of the script, after --.
    """
    from onsight.hardware.spinning import choose_spinning

    choose_spinning()  # before torch loads
    from onsight.explainer.dispatch import explain_any

    asked = compare is not None or bool(batch_sizes) or save_plot is not None
    explain_any(
        subject,
        list(script_args),
        given=given(fields),
        layers=(recipe, config),
        compared=(compare or "", batch_sizes, save_plot) if asked else None,
        what_ifs=what_ifs,
        seconds=seconds,
        limit_seconds=limit,
        on_twin=twin,
        as_json=json_,
        trace_file=trace,
    )
