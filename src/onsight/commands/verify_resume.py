"""The command `onsight verify-resume`."""

import json
import sys
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from onsight.commands.options import DATA, RUN, ConfigFile, Json, Recipe, given
from onsight.config import Config


def verify_resume(
    data: Annotated[str, Parameter(help=DATA)],
    *,
    kills: Annotated[
        int,
        Parameter(
            group=RUN, validator=Number(gte=1, lte=1000), help="How often the run is killed."
        ),
    ] = 3,
    recipe: Recipe = None,
    config: ConfigFile = None,
    json_: Annotated[Json, Parameter(group=RUN)] = False,
    fields: Annotated[Config | None, Parameter(name="*")] = None,
) -> None:
    """See on your own DATA that a killed run, resumed, ends as if nothing had happened.

    Trains twice on a few of your images: once undisturbed, once killed without warning (SIGKILL)
    at random moments and resumed each time. Then weights, optimizer, metrics and every prediction
    are compared bit for bit. Exit code 0: all equal; 1: something differs, which is named, and both
    runs are kept.

    Unless you say otherwise: --model compact, --epochs 2, --train-images 512, --batch-size 32,
    --folds 1. Any setting of `onsight train` can be given, to verify it as you use it. Nothing of
    yours is changed; both runs are in a temporary folder. Takes a quarter of a minute and about
    five seconds for each kill.
    """
    from onsight.training.verify_resume.verify import verify_resume as verify

    found = verify(
        data,
        kills,
        lambda line: print(line, file=sys.stderr),
        recipe=recipe,
        config_file=config,
        **given(fields),
    )
    if json_:
        print(json.dumps(found.facts()))
    else:
        print("\n".join(found.lines()))
    if not found.equal:
        raise SystemExit(1)
