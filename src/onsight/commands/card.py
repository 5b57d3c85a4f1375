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
    push: Annotated[
        str | None,
        Parameter(
            help="Write that folder and upload it to this repository, OWNER/NAME; a new one is "
            "private."
        ),
    ] = None,
) -> None:
    """Write a model card from a run's own files, or a folder for the Hugging Face Hub.

    Parameters
    ----------
    model
        A run folder, or a model file alone.
    """
    folder = model if model.is_dir() else model.parent
    if push is None and to == "card":
        from onsight.report.card.card import write_card
        from onsight.report.card.subject import read_subject

        print(write_card(read_subject(model), out or folder / "card.md", license_))
        return
    from onsight.export.hub_folder import write_hub_folder
    from onsight.export.push import check_can_push
    from onsight.export.push import push as push_folder

    if push is not None:
        check_can_push(push)
    written = write_hub_folder(model, out or folder / "hub", license_)
    if written.why_not:
        print(f"note: only Onsight can load it: {written.why_not}", file=sys.stderr)
    else:
        off = f"{written.difference:.1e}"
        print(f"timm loads it too: its logits differ by at most {off}", file=sys.stderr)
    print(push_folder(written.path, push) if push else written.path)
