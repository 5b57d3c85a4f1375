"""The results of a run or an evaluation, printed for people or programs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onsight.evaluation.results import Results


def show_results(results: "Results", as_json: bool, **places: Path) -> None:
    """Print the results and what was written where, for people or as one JSON object."""
    from rich.markup import escape

    from onsight.report.console import ResultConsole, print_results

    if as_json:
        written = {name: str(path) for name, path in places.items()}
        if "model" in written:  # the file takes the place of the network's name
            written = {"architecture": results["model"], **written}
        print(json.dumps({**results, **written}))
        return
    console = ResultConsole()
    print_results(results, console)
    for name, path in places.items():
        console.print(escape(f"{name}: {path}"))
