"""The files of the page, read once: a name in a URL is looked up here and never in a folder."""

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "json": "application/json",
    "ico": "image/x-icon",
}


@dataclass(frozen=True)
class PageFile:
    """A file's bytes, its media type and a tag that changes with it."""

    content: bytes
    media_type: str
    tag: str


def page_files() -> dict[str, PageFile]:
    """Every file of the page by its name."""
    found = {}
    for entry in files("onsight.serve").joinpath("page").iterdir():
        media_type = _TYPES.get(entry.name.rpartition(".")[2])
        if media_type and entry.is_file():
            content = entry.read_bytes()
            found[entry.name] = PageFile(
                content, media_type, f'"{sha256(content).hexdigest()[:16]}"'
            )
    return found
