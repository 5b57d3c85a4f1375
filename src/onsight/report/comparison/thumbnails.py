"""Small images for the page of a comparison, read from the DATA of its runs."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from onsight.data.cache import find_cache_folder
from onsight.data.decode import pixel_digest, prepare_image
from onsight.data.pixels import Pixels
from onsight.data.sources.find import ReadOptions, find_source
from onsight.data.sources.named import needs_download
from onsight.data.sources.source import Source
from onsight.errors import ImageError, OnsightError
from onsight.report.comparison.held_out import HeldOut
from onsight.report.tables import digest_text

_SIDE = 112  # pixels; smaller images are embedded as they are


class Thumbnail(NamedTuple):
    """An image as a data URI, and whether it is so small that its pixels should stay crisp."""

    uri: str
    tiny: bool


def thumbnails(run: HeldOut, rows: Sequence[int]) -> list[Thumbnail | None]:
    """The images of these rows of a run; None for each that is gone or has changed."""
    source = _open(run)
    if source is None:
        return [None] * len(rows)
    wanted = {run.image_paths[row] for row in rows}
    places = {
        locator: place for place, locator in enumerate(source.index.locators) if locator in wanted
    }
    return [_thumbnail(run, row, source, places) for row in rows]


def _open(run: HeldOut) -> Source | None:
    """The run's DATA, if it can be read here without a download."""
    data_format = str(run.config.get("data_format", "auto"))
    is_name = data_format == "torchvision" or not Path(run.data).expanduser().exists()
    if is_name and needs_download(run.data):
        return None
    cache_folder = find_cache_folder(str(run.config.get("cache_folder", "")))
    try:
        return find_source(run.data, ReadOptions.from_config(run.config), cache_folder)
    except OnsightError:
        return None


def _thumbnail(run: HeldOut, row: int, source: Source, places: dict[str, int]) -> Thumbnail | None:
    place = places.get(run.image_paths[row])
    if place is None:
        return None
    try:
        pixels, _ = prepare_image(source.read(place), run.format)
    except ImageError:
        return None
    if run.digests[row] and run.digests[row] != digest_text(pixel_digest(pixels)):
        return None
    return _embedded(pixels)


def _embedded(pixels: Pixels) -> Thumbnail:
    """Pixels (H, W, 1 or 3) as a PNG of at most 112 pixels a side."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    tiny = max(image.size) <= _SIDE
    image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    image.save(data, "PNG")
    return Thumbnail("data:image/png;base64," + base64.b64encode(data.getvalue()).decode(), tiny)
