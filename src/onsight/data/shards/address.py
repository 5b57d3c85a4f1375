"""What a URL of shards means: its scheme, and the addresses that braces stand for."""

import re
from collections.abc import Iterator
from pathlib import PosixPath

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::[A-Za-z][A-Za-z0-9+.-]*)*://")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


class UrlPath(PosixPath):
    """A URL where a source has a path; only its text means something."""

    def __str__(self) -> str:
        """The URL, of which a path keeps but one slash."""
        return re.sub(r":/(?=[^/]|$)", "://", super().__str__(), count=1)


def is_url(text: str) -> bool:
    """Whether a text names a place that fsspec opens, such as s3://bucket/folder."""
    return _SCHEME.match(text) is not None


def without_file_scheme(text: str) -> str:
    """The path that a file:// URL names; any other text as it is."""
    return text.removeprefix("file://") if text.startswith("file:///") else text


def spelt_out(text: str) -> Iterator[str]:
    """The addresses that braces stand for: a-{000..002}.tar, a-{x,y}.tar."""
    found = _BRACES.search(text)
    if found is None:
        yield text
        return
    for part in _parts(found[1]):
        yield from spelt_out(text[: found.start()] + part + text[found.end() :])


def _parts(inside: str) -> Iterator[str]:
    limits = _RANGE.fullmatch(inside)
    if limits is None:
        yield from inside.split(",")
        return
    first, last = limits.groups()
    yield from (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
