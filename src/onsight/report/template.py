"""Pages that open offline: made from a template, and known again by a mark in their first bytes."""

from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

_MARK_WITHIN = 1_000  # bytes from the start of a page


@cache  # compiling one takes longer than filling it
def page_template(
    package: str, name: str, *, escaped: bool = True, **filters: Callable[..., Any]
) -> jinja2.Template:
    """A template of a package, which escapes whatever is put into it, as HTML needs it."""
    environment = jinja2.Environment(
        autoescape=escaped, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= filters
    text = (resources.files(package) / name).read_text(encoding="utf-8")
    return environment.from_string(text)


def has_mark(page: Path, mark: bytes) -> bool:
    """Whether a file is a page with this mark."""
    try:
        with open(page, "rb") as file:
            return mark in file.read(_MARK_WITHIN)
    except OSError:
        return False
