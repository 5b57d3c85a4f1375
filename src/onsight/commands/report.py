"""The commands that present finished runs: `onsight report`, `compare` and `card`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from onsight.commands.options import Json
from onsight.text import printable


def report(run: Annotated[Path, Parameter(help="A run folder.")], /) -> None:
    """Rebuild a run's report.html from the files in its folder."""
    from onsight.files import refuse_links
    from onsight.models.file import find_model_file
    from onsight.report.page import write_report
    from onsight.report.run_files import is_damaged, refuse_other_results

    refuse_links(run)
    if file := find_model_file(run):
        refuse_other_results(run, file.results)
    if is_damaged(run / "results.json"):
        print("note: results.json is damaged, so the report has no results", file=sys.stderr)
    print(write_report(run))


def compare(
    *runs: Annotated[
        Path,
        Parameter(
            help="Two or more run folders. They are compared on the images that all of them held "
            "out."
        ),
    ],
    out: Annotated[Path, Parameter(help="Page to write, or a folder for its compare.html.")] = Path(
        "compare.html"
    ),
    json_: Json = False,
) -> None:
    """Compare runs image by image: which is better, and is the difference significant?"""
    from onsight.report.compare import compare as compare_runs
    from onsight.report.compare_page import choose_page_path

    choose_page_path(out)  # refuses a bad name before the work
    comparison = compare_runs(*runs)
    page = comparison.save_page(out)
    if json_:
        print(json.dumps({**comparison.facts(), "page": str(page)}))
    else:
        print(printable(f"{comparison}\npage: {page}"))


def card(
    model: Annotated[Path, Parameter(help="A run folder, or a model file alone.")],
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(
            help="File to write, or folder for --to hub-folder. Default: card.md or hub next to "
            "the model."
        ),
    ] = None,
    license_: Annotated[
        str | None,
        Parameter(name="--license", help="License to state, such as apache-2.0."),
    ] = None,
    to: Annotated[
        Literal["card", "hub-folder"],
        Parameter(
            help="hub-folder: a folder for the Hugging Face Hub, with the card and weights that "
            "timm can load too."
        ),
    ] = "card",
) -> None:
    """Write a model card for a run, or a folder for the Hugging Face Hub."""
    folder = model if model.is_dir() else model.parent
    if to == "card":
        from onsight.report.card import write_card
        from onsight.report.card_facts import read_card_subject

        print(write_card(read_card_subject(model), out or folder / "card.md", license_))
        return
    from onsight.export.hub_folder import write_hub_folder

    written = write_hub_folder(model, out or folder / "hub", license_)
    if written.timm_problem:
        print(f"note: only Onsight can load it: {written.timm_problem}", file=sys.stderr)
    else:
        difference = f"{written.difference:.1e}"
        print(f"timm can load it too: logits differ by at most {difference}", file=sys.stderr)
    print(written.path)
