"""Self-contained HTML pages: templates, styles and inline images. A page loads nothing."""

import base64
import hashlib
import io
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from PIL import Image

from onsight.files import write_atomically
from onsight.text import (
    data_size,
    duration,
    four_digits,
    path_ending,
    percent,
    plain_value,
    plural,
    whole_number,
)


def _sha256(text: str) -> str:
    """Return the digest with which a Content-Security-Policy allows an inline script."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_FILTERS: dict[str, Callable[..., str]] = {
    "count": whole_number,
    "duration": duration,
    "ending": path_ending,
    "number": four_digits,
    "percent": percent,
    "plain": plain_value,
    "plural": plural,
    "sha256": _sha256,
    "size": data_size,
}


class InlineImage(NamedTuple):
    """An image inside a page."""

    uri: str  # a data URI
    tiny: bool  # so small that its pixels should stay crisp when enlarged


@cache  # compiling a template takes longer than filling it
def page_template(
    package: str, name: str, *, autoescape: bool = True, **filters: Callable[..., Any]
) -> jinja2.Template:
    """Load a template from a package; it may include others as "package/name".

    The formats of onsight.text are available as filters.
    """
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read_template),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _FILTERS | filters
    return environment.get_template(f"{package}/{name}")


def write_page(path: Path, page: str) -> None:
    """Write a page atomically; a path in it that is not UTF-8 is shown with escapes."""
    write_atomically(path, page.encode("utf-8", "backslashreplace"))


def inline_thumbnail(
    image: Image.Image, longest_side: int, lossless_side: int | None = None
) -> InlineImage:
    """Embed an image, shrunk to a longest side in pixels.

    Up to lossless_side, by default of any size, it is a PNG; if larger, a JPEG, for pages with
    hundreds of images.
    """
    limit = longest_side if lossless_side is None else lossless_side
    tiny = max(image.size) <= limit
    image.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    kind = "png" if max(image.size) <= limit else "jpeg"
    data = io.BytesIO()
    image.save(data, kind, quality=85)  # PNG has no quality
    return InlineImage(data_uri(data.getvalue(), kind), tiny)


def data_uri(data: bytes, kind: str) -> str:
    """Return an image file as a data URI. kind: png or jpeg."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _read_template(name: str) -> str:
    package, _, file = name.partition("/")
    return (resources.files(package) / file).read_text(encoding="utf-8")
