"""Write the comparison page: the images on which the runs differ, read from their DATA."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsight.data.cache import find_cache_folder
from onsight.data.decode import pixel_digest, prepare_image
from onsight.data.pixels import to_pillow
from onsight.data.sources.find import find_recorded_source
from onsight.data.sources.source import Source
from onsight.errors import ImageError, OnsightError
from onsight.files import refuse_foreign
from onsight.report.compare_pairs import HeldOutPredictions, Pairing
from onsight.report.html_page import InlineImage, inline_thumbnail, page_template, write_page
from onsight.report.run_files import digest_text

DEFAULT_NAME = "compare.html"
_MAX_IMAGES = 60
_THUMBNAIL_SIDE = 112  # pixels
_MARK = b'<meta name="generator" content="onsight compare">'


def choose_page_path(path: Path) -> Path:
    """Return the path, or path / compare.html if it isn't an HTML file.

    Raises OutputError if the page exists and is not a comparison page written by Onsight.
    """
    is_file = path.suffix.lower() in (".html", ".htm") or path.is_file()
    page = path if is_file else path / DEFAULT_NAME
    refuse_foreign(page, _MARK, "a comparison page")
    return page


def write_comparison_page(
    path: Path, runs: Sequence[HeldOutPredictions], pairing: Pairing, **texts: Any
) -> Path:
    """Write the page, and return its path. Raises OutputError, DiskError.

    texts: the remaining template variables.
    """
    page_path = choose_page_path(path)
    differing = _find_differing(runs, pairing)
    template = page_template("onsight.report", "compare.html.jinja")
    page = template.render(
        mark=_MARK.decode(),
        differing=len(differing),
        images=_describe_images(runs, pairing.rows[:, differing[:_MAX_IMAGES]]),
        **texts,
    )
    write_page(page_path, page)
    return page_path


def _find_differing(runs: Sequence[HeldOutPredictions], pairing: Pairing) -> list[int]:
    """Return the common images with different predictions, the most confident ones first.

    An image's confidence is the lowest across runs.
    """
    pairs = list(zip(runs, pairing.rows, strict=True))
    predicted = np.stack([run.predicted[rows] for run, rows in pairs])
    confidence = np.stack([run.probability[rows] for run, rows in pairs]).min(axis=0)
    images = np.flatnonzero((predicted != predicted[0]).any(axis=0))
    ranked: list[int] = images[np.argsort(-confidence[images], kind="stable")].tolist()
    return ranked


def _describe_images(
    runs: Sequence[HeldOutPredictions], rows: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Return the template's variables for each image. rows: (R, images)."""
    first = runs[0]
    return [
        {
            "thumbnail": thumbnail,
            "label": first.classes[first.labels[image_rows[0]]],
            "path": first.image_paths[image_rows[0]],
            "predictions": [
                {
                    "run": run.name,
                    "predicted": run.classes[run.predicted[row]],
                    "probability": float(run.probability[row]),
                    "correct": bool(run.correct[row]),
                }
                for run, row in zip(runs, image_rows, strict=True)
            ],
        }
        for thumbnail, image_rows in zip(_find_thumbnails(runs, rows), rows.T.tolist(), strict=True)
    ]


def _find_thumbnails(
    runs: Sequence[HeldOutPredictions], rows: NDArray[np.int64]
) -> list[InlineImage | None]:
    """Read each image from the first run whose DATA still has it. rows: (R, images)."""
    thumbnails: list[InlineImage | None] = [None] * rows.shape[1]
    tried: set[str] = set()
    for run, run_rows in zip(runs, rows.tolist(), strict=True):
        missing = [index for index, image in enumerate(thumbnails) if image is None]
        if not missing or run.data in tried:
            continue
        tried.add(run.data)
        images = _read_thumbnails(run, [run_rows[index] for index in missing])
        for index, image in zip(missing, images, strict=True):
            thumbnails[index] = image
    return thumbnails


def _read_thumbnails(run: HeldOutPredictions, rows: Sequence[int]) -> list[InlineImage | None]:
    """Return the images in these rows of a run, or None for each that is gone or has changed."""
    try:  # DATA may be gone, and another machine is not contacted
        source = find_recorded_source(run.data, run.config, find_cache_folder(""))
    except OnsightError:
        return [None] * len(rows)
    wanted = {run.image_paths[row] for row in rows}
    indices = {
        locator: index for index, locator in enumerate(source.index.locators) if locator in wanted
    }
    return [_read_thumbnail(run, row, source, indices) for row in rows]


def _read_thumbnail(
    run: HeldOutPredictions, row: int, source: Source, indices: dict[str, int]
) -> InlineImage | None:
    index = indices.get(run.image_paths[row])
    if index is None:
        return None
    try:
        pixels, _ = prepare_image(source.read(index), run.format)
    except ImageError:
        return None
    if run.digests[row] and run.digests[row] != digest_text(pixel_digest(pixels)):
        return None
    return inline_thumbnail(to_pillow(pixels), _THUMBNAIL_SIDE)
