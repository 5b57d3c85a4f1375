"""The command `onsight compare`."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onsight.commands.options import Json


def compare(
    *runs: Path,
    out: Annotated[
        Path,
        Parameter(help="The page to write, or a folder for its compare.html."),
    ] = Path("compare.html"),
    json_: Json = False,
) -> None:
    """Compare runs image by image: which is better, and whether that is more than noise.

    Parameters
    ----------
    runs
        Two or more run folders. What all of them held out is compared.
    """
    from onsight.report.comparison.compare import compare as compare_runs
    from onsight.report.comparison.page import page_place

    page_place(out)  # before the work
    found = compare_runs(*runs)
    page = found.save_page(out)
    if json_:
        print(json.dumps({**found.facts(), "page": str(page)}))
    else:
        print(f"{found}\npage: {page}")
