"""The page of a check: one HTML file that opens offline, images side by side."""

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from onsight.audit.finding import KINDS, Finding, Place
from onsight.errors import OutputError
from onsight.files import write_atomically
from onsight.report import filters
from onsight.report.template import has_mark, page_template
from onsight.words import duration, percent

if TYPE_CHECKING:  # its method save imports this module
    from onsight.audit.audit import Audit

NAME, TABLE = "check.html", "check.csv"
_MOST = 48  # findings of a kind that are shown
_SIDE = 128  # pixels of an image's longer side at most
_TINY = 64  # pixels: smaller images stay crisp
_MARK = b'<meta name="generator" content="onsight check">'


def check_place(folder: Path) -> None:
    """Raise OutputError if the folder has a check.html or check.csv that no check wrote."""
    page, table = folder / NAME, folder / TABLE
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; --out names a folder")
    if (page.exists() or table.exists()) and not has_mark(page, _MARK):
        raise OutputError(
            f"{folder} has a {NAME if page.exists() else table.name} that no check wrote, so it is "
            "left as it is; choose another folder with --out"
        )


def write_page(audit: "Audit", folder: Path) -> Path:
    """Write the page into a folder, and return its path. Raises OutputError, DiskError."""
    check_place(folder)
    template = page_template(
        "onsight.audit",
        "check.html.jinja",
        percent=percent,
        count=filters.whole,
        duration=duration,
        ending=filters.path_end,
    )
    page = template.render(_content(audit))
    # A path that is not UTF-8 is shown with escapes.
    write_atomically(folder / NAME, page.encode("utf-8", "backslashreplace"))
    return folder / NAME


def _content(audit: "Audit") -> dict[str, Any]:
    """The template's variables."""
    sections = []
    for kind, heading in KINDS.items():
        found = audit.of(kind)
        if found:
            shown = [_card(audit, one) for one in found[:_MOST]]
            sections.append({"kind": kind, "heading": heading, "count": len(found), "shown": shown})
    classes = sorted(audit.classes.items(), key=lambda one: one[1])
    return {"mark": _MARK.decode(), "audit": audit, "sections": sections, "classes": classes}


def _card(audit: "Audit", finding: Finding) -> dict[str, Any]:
    images = [{"place": place, "uri": _thumbnail(audit, place)} for place in finding.places]
    return {"finding": finding, "images": images}


def _thumbnail(audit: "Audit", place: Place) -> str:
    """An image as it is packed, as a data URI; empty for what is no image."""
    if place.number is None:
        return ""
    pack = audit.subject.pack
    pixels = pack.pixels[pack.rows[place.number]]
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    header = audit.subject.header(place.number)
    if header:  # packed images are squeezed to one shape
        scale = max(image.size) / max(header.height, header.width)
        image = image.resize(
            (max(1, round(scale * header.width)), max(1, round(scale * header.height)))
        )
    image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    kind = "PNG" if max(image.size) <= _TINY else "JPEG"
    image.save(data, kind, quality=85)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(data.getvalue()).decode()}"
