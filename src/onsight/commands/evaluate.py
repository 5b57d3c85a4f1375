"""The command `onsight eval`."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onsight.commands.options import OUTPUT, Json, Model, ModelOptions, ReadingOptions
from onsight.config import Tta


def evaluate(
    model: Model,
    data: Annotated[
        str, Parameter(help="Labelled images, in any form that `onsight train` accepts.")
    ],
    /,
    *,
    tta: Annotated[
        Tta,
        Parameter(
            help="Test-time augmentation: also report the accuracy of predictions averaged over "
            "several views of each image."
        ),
    ] = "none",
    csv: Annotated[
        Path | None, Parameter(group=OUTPUT, help="CSV file with a row for every image.")
    ] = None,
    json_: Annotated[Json, Parameter(group=OUTPUT)] = False,
    reading: ReadingOptions = ReadingOptions(),  # noqa: B008  # frozen
    options: ModelOptions = ModelOptions(),  # noqa: B008  # frozen
) -> None:
    """Evaluate a model on DATA, without the images it was trained on."""
    from onsight.data.dataset import describe_problems
    from onsight.inference.evaluate import evaluate as evaluate_model
    from onsight.report.console import Reporter, ResultConsole, print_results
    from onsight.text import plural

    reporter = Reporter()
    results = evaluate_model(
        model,
        data,
        csv=csv,
        tta=tta,
        reporter=reporter,
        **vars(options),
        **vars(reading),
    )
    for line in describe_problems(results["problem_rows"]):
        reporter.warn(line)
    if results["seen"]:
        images = plural(results["seen"], "image")
        reporter.say(f"{images} excluded: the model was trained or selected with them")
    if json_:
        print(json.dumps(results))
    else:
        print_results(results, ResultConsole())
