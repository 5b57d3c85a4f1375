"""Search the training images of a model for those most similar to an image.

The training images are opened at the first request, in a separate thread and with a separate copy
of the network, so that predictions continue meanwhile.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.exceptions import HTTPException

from onsight.data.pixels import Pixels, encode_png
from onsight.errors import OnsightError
from onsight.serve.monitoring import log
from onsight.serve.registry import Load, ModelRegistry, ServedModel

if TYPE_CHECKING:
    from onsight.inference.predictor import Predictor
    from onsight.inference.similar import SearchSet

_MAX_IMAGES = 50_000  # largest searchable training set; opening more would take too long
_RETRY_LATER = {"Retry-After": "10"}


class SimilarImages:
    """The training images of each model, once they have been opened."""

    def __init__(self, registry: ModelRegistry, is_private: bool) -> None:
        self._registry = registry
        self._is_private = is_private  # only this machine or holders of the token see images
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="similar")
        self._opened: dict[ServedModel, asyncio.Future[tuple[Predictor, SearchSet]]] = {}

    def why_unavailable(self, model: ServedModel) -> str | None:
        """Return why a model's images cannot be searched; None if no reason is known."""
        if not self._is_private:
            return "training images are shown only on this machine or with a token"
        file = getattr(model.predictor.runner, "file", None)
        if file is None:
            return "an exported model has no record of its training images"
        if not 0 < len(file.seen) <= _MAX_IMAGES:
            return f"only 1 to {_MAX_IMAGES:,} training images can be searched"
        task = self._opened.get(model)
        failed = task is not None and task.done() and task.exception() is not None
        return "the training images cannot be opened: see the log" if failed else None

    async def search(self, model: ServedModel, pixels: Pixels, count: int) -> list[dict[str, Any]]:
        """Return the images most similar to pixels (H, W, C), as JSON values.

        Raises HTTPException (503) while the training images are being opened.
        """
        loop = asyncio.get_running_loop()
        if model not in self._opened:
            self._opened = {  # forget models that were replaced
                other: opened
                for other, opened in self._opened.items()
                if other is self._registry.get(other.name)
            }
            self._opened[model] = loop.run_in_executor(
                self._thread, _open, self._registry.load, model.path
            )
        task = self._opened[model]
        if not task.done():
            raise HTTPException(
                503, "the training images are being opened: try again", headers=_RETRY_LATER
            )
        predictor, images = task.result()
        return await loop.run_in_executor(
            self._thread, _find_nearest, predictor, images, pixels, count
        )


def _open(load: Load, path: Path) -> tuple["Predictor", "SearchSet"]:
    """Return a separate copy of a model, and its training images to search."""
    # Imported here because they load torch, which serving an exported model must not need.
    from onsight.inference.similar import open_search_set
    from onsight.report.console import SilentReporter

    try:
        predictor = load(path)
        return predictor, open_search_set(predictor, path, None, reporter=SilentReporter())
    except OnsightError as error:
        log("training images not opened", error=str(error))
        raise


def _find_nearest(
    predictor: "Predictor", images: "SearchSet", pixels: Pixels, count: int
) -> list[dict[str, Any]]:
    from onsight.report.html_page import data_uri  # onsight-run lacks jinja2

    features = predictor.runner.run(pixels[np.newaxis], features=True).features
    assert features is not None
    neighbours = (images.neighbour(*match) for match in images.search(features, count)[0])
    return [
        {
            "label": neighbour.label,
            "similarity": neighbour.similarity,
            "image": data_uri(encode_png(neighbour.pixels), "png"),
        }
        for neighbour in neighbours
    ]
