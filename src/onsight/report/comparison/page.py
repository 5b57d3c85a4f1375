"""The page of a comparison: one HTML file that opens offline, images included."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onsight.errors import OutputError
from onsight.files import write_atomically
from onsight.report import filters
from onsight.report.comparison import words
from onsight.report.comparison.held_out import HeldOut
from onsight.report.comparison.thumbnails import Thumbnail, thumbnails
from onsight.report.template import has_mark, page_template
from onsight.words import duration, percent

if TYPE_CHECKING:  # its method save_page uses this module
    from onsight.report.comparison.result import Comparison

DEFAULT_NAME = "compare.html"
_MOST = 60  # images shown
_MARK = b'<meta name="generator" content="onsight compare">'


def page_place(path: Path) -> Path:
    """The file for a page: the path itself, or compare.html in it if it is no .html.

    Raises OutputError if that is a file which is not the page of a comparison.
    """
    is_file = path.suffix.lower() in (".html", ".htm") or path.is_file()
    place = path if is_file else path / DEFAULT_NAME
    if place.exists() and not has_mark(place, _MARK):
        raise OutputError(
            f"{place} exists and is not the page of a comparison, so it is left as it is; "
            "choose another file with --out"
        )
    return place


def write_page(found: "Comparison", path: Path) -> Path:
    """Write the page, and return its path. Raises OutputError, DiskError."""
    place = page_place(path)
    template = page_template(
        "onsight.report.comparison",
        "compare.html.jinja",
        percent=percent,
        count=filters.whole,
        duration=duration,
        plain=filters.plain,
        ending=filters.path_end,
    )
    page = template.render(_content(found))
    # A path that is not UTF-8 is shown with escapes.
    write_atomically(place, page.encode("utf-8", "backslashreplace"))
    return place


def _content(found: "Comparison") -> dict[str, Any]:
    """The template's variables."""
    differing = _differing(found)
    shown = differing[:_MOST]
    return {
        "mark": _MARK.decode(),
        "found": found,
        "sentences": [words.gap_sentence(found, gap) for gap in found.gaps],
        "class_sentence": words.class_sentence(found),
        "class_lines": [words.class_line(name, gap) for name, gap in found.class_gaps],
        "limit": words.LIMIT,
        "differing": len(differing),
        "images": _images(found, shown),
    }


def _differing(found: "Comparison") -> list[int]:
    """The common images that were not predicted alike, those first where all were surest."""
    pairs = list(zip(found.held_out, found.pairing.rows, strict=True))
    predicted = np.stack([run.predicted[rows] for run, rows in pairs])
    surest = np.stack([run.probability[rows] for run, rows in pairs]).min(axis=0)
    places = np.flatnonzero((predicted != predicted[0]).any(axis=0))
    return [int(place) for place in places[np.argsort(-surest[places], kind="stable")]]


def _images(found: "Comparison", places: Sequence[int]) -> list[dict[str, Any]]:
    """What the page shows of each image: its label, what every run said, the image itself."""
    rows = found.pairing.rows[:, list(places)]
    first = found.held_out[0]
    return [
        {
            "thumbnail": thumbnail,
            "label": first.classes[first.labels[column[0]]],
            "path": first.image_paths[column[0]],
            "said": [_said(run, row) for run, row in zip(found.held_out, column, strict=True)],
        }
        for thumbnail, column in zip(_thumbnails(found, rows), rows.T.tolist(), strict=True)
    ]


def _said(run: HeldOut, row: int) -> dict[str, Any]:
    return {
        "name": run.name,
        "predicted": run.classes[run.predicted[row]],
        "probability": float(run.probability[row]),
        "right": bool(run.right[row]),
    }


def _thumbnails(found: "Comparison", rows: Any) -> list[Thumbnail | None]:
    """Each image from the first run whose DATA still has it. rows: int64 (R, images)."""
    images: list[Thumbnail | None] = [None] * rows.shape[1]
    tried: set[str] = set()
    for run, own in zip(found.held_out, rows.tolist(), strict=True):
        missing = [number for number, image in enumerate(images) if image is None]
        if not missing or run.data in tried:
            continue
        tried.add(run.data)
        read = thumbnails(run, [own[number] for number in missing])
        for number, image in zip(missing, read, strict=True):
            images[number] = image
    return images
