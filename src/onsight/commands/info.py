"""The commands that describe what is available: `onsight models`, `recipes` and `doctor`."""

import json
from typing import Annotated

from cyclopts import Parameter

from onsight.commands.options import Json
from onsight.config_files import read_about, recipe_names


def models(
    pattern: Annotated[
        str,
        Parameter(
            help="List names that contain this text, or match it if it has * or ?; '*' lists all. "
            "Default:\nOnsight's own models, those with weights on this machine, and a selection "
            "of timm's."
        ),
    ] = "",
    /,
    *,
    json_: Json = False,
) -> None:
    """List models, their cost, and whether their weights are available offline."""
    from rich.console import Console

    from onsight.report.model_list import list_models

    list_models(pattern, json_, Console(highlight=False, soft_wrap=True))


def recipes() -> None:
    """List the ready-made configs for --recipe and the results they reproduce."""
    from rich.console import Console

    from onsight.report.console import print_recipe

    console = Console(highlight=False, soft_wrap=True)
    for name in recipe_names():
        print_recipe(name, read_about(name), console)


def doctor(*, json_: Json = False) -> None:
    """Check this machine: what works, what slows down training, and how to fix it."""
    from rich.console import Console

    from onsight.doctor.examine import examine
    from onsight.doctor.report import count, facts, print_results

    with Console(stderr=True).status("checking this machine") as status:
        results = examine(lambda name: status.update(f"checking this machine: {name}"))
    if json_:
        print(json.dumps(facts(results)))
    else:
        print_results(results, Console(highlight=False))
    if count(results, "problem"):
        raise SystemExit(1)
