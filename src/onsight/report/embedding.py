"""The images of a run's gallery, embedded in the page as data URIs."""

import base64
import struct
from pathlib import Path

from onsight.report.runfiles import Row, Said

GALLERY = "gallery/gallery.json"
_TINY_PIXELS = 112
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def embedded_gallery(run: Path, listed: Row | None) -> Row | None:
    """The wrong and right predictions that gallery.json lists with their images.

    lookalikes: how many training images were compared with the mistakes; heat: of how many
    mistakes it was drawn; if the file says so.
    """
    if listed is None:
        return None
    folder = (run / GALLERY).parent
    sides = {
        side: [_embedded(folder, item) for item in listed.get(side, [])]
        for side in ("wrong", "right")
    }
    return sides | {name: listed.get(name) for name in ("lookalikes", "heat")}


def _embedded(folder: Path, item: Row) -> Row:
    others = {"strip": item.get("near_file"), "heat": item.get("heat_file")}
    images = {
        name: Said(_image(folder / Path(file).name)) if file else None
        for name, file in others.items()
    }
    return Said(item | _image(folder / Path(item["file"]).name) | images)


def _image(path: Path) -> Row:
    """A PNG as a data URI, and whether it is so small that its pixels should stay crisp."""
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    if len(data) < 24 or not data.startswith(_PNG_SIGNATURE):
        return {"uri": None, "tiny": False}
    width, height = struct.unpack(">II", data[16:24])
    uri = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"uri": uri, "tiny": max(width, height) <= _TINY_PIXELS}
