"""The command `onsight card`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def card(
    model: Path,
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(
            help="The file, or the folder of --to hub-folder. Default: card.md or hub beside the "
            "model."
        ),
    ] = None,
    license_: Annotated[
        str | None,
        Parameter(name="--license", help="The license to state, such as apache-2.0."),
    ] = None,
    to: Annotated[
        Literal["card", "hub-folder"],
        Parameter(
            help="hub-folder: a folder for the Hugging Face Hub, with the weights and the card, "
            "that timm can load too."
        ),
    ] = "card",
) -> None:
    """Write a model card from a run's own files, or a folder for the Hugging Face Hub.

    Parameters
    ----------
    model
        A run folder, or a model file alone.
    """
    folder = model if model.is_dir() else model.parent
    if to == "card":
        from onsight.report.card.card import write_card
        from onsight.report.card.subject import read_subject

        print(write_card(read_subject(model), out or folder / "card.md", license_))
        return
    from onsight.export.hub_folder import write_hub_folder

    written = write_hub_folder(model, out or folder / "hub", license_)
    if written.why_not:
        print(f"note: only Onsight can load it: {written.why_not}", file=sys.stderr)
    else:
        off = f"{written.difference:.1e}"
        print(f"timm loads it too: its logits differ by at most {off}", file=sys.stderr)
    print(written.path)
