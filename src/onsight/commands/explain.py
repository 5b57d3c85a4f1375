"""The command `onsight explain`."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from onsight.commands.options import RUN, ConfigFile, Json, Recipe, given_fields
from onsight.config import Config

_COMPARE = Group("Comparing devices", sort_key=1, default_parameter=Parameter(show=True))


def explain(
    subject: Annotated[
        str,
        Parameter(
            show=True,
            help="A run folder such as runs/pets; labelled images in any form that `onsight train` "
            "accepts, to explain the run it would start; or any PyTorch training script, which is "
            "run unmodified, as in `onsight explain train.py -- --epochs 3`. The options for "
            "scripts are those of `onsight-explain`: see `onsight explain train.py --help`.",
        ),
    ],
    /,
    *,
    compare: Annotated[
        str | None,
        Parameter(
            group=_COMPARE,
            help="Devices to compare, such as cpu,cuda:0. cpu alone: compare thread counts and "
            "precisions. all: the CPU and every accelerator.",
        ),
    ] = None,
    batch_sizes: Annotated[
        str,
        Parameter(
            group=_COMPARE,
            help="Batch sizes to compare, such as 4,32. Default: 4, 32, 128, 512 and the config's.",
        ),
    ] = "",
    save_plot: Annotated[
        Path | None, Parameter(group=_COMPARE, help="PNG file with a plot of the comparison.")
    ] = None,
    what_ifs: Annotated[
        bool, Parameter(group=RUN, help="Try changes and time each of them.")
    ] = True,
    seconds: Annotated[
        float,
        Parameter(
            group=RUN,
            help="Approximate time to take. More time detects smaller gains, and tries more "
            "changes of a script that starts slowly.",
        ),
    ] = 60.0,
    quick: Annotated[
        bool,
        Parameter(group=RUN, negative="", help="Take 30 seconds instead of 60."),
    ] = False,
    trace: Annotated[
        Path | None,
        Parameter(
            group=RUN,
            help="Write a timeline of the measured steps to this file; open it at ui.perfetto.dev "
            "or chrome://tracing.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        Parameter(group=RUN, help="Write the result to this file as a page, too."),
    ] = None,
    recipe: Recipe = None,
    config: ConfigFile = None,
    json_: Annotated[Json, Parameter(group=RUN)] = False,
    settings: Annotated[Config | None, Parameter(name="*")] = None,
) -> None:
    """Find out what slows down a run or any training script, and what would help."""
    from onsight.explainer.explain import explain as explain_subject
    from onsight_explain.explain import QUICK_SECONDS

    explanation = explain_subject(
        subject,
        what_ifs=what_ifs,
        seconds=min(seconds, QUICK_SECONDS) if quick else seconds,
        compare=compare,
        batch_sizes=batch_sizes,
        recipe=recipe,
        config=config,
        trace_file=trace,
        plot_file=save_plot,
        page_file=html,
        **given_fields(settings),
    )
    if json_:
        print(json.dumps(explanation.facts()))
    else:
        explanation.show()
    if save_plot and not json_:
        print(f"plot: {save_plot}")
