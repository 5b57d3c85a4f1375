"""POST /similar: the training images that look most like an image, if they are at hand.

They are opened at the first request, in a thread and with a network of their own, so that
predictions go on meanwhile.
"""

import asyncio
import base64
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from onsight.data.pillow_pixels import Pixels
from onsight.errors import OnsightError
from onsight.serve.ask import asked, count_of, one_image, served_for
from onsight.serve.body import Held
from onsight.serve.logs import log
from onsight.serve.served import Served
from onsight.serve.settings import Limits
from onsight.serve.shelf import Load, Shelf

if TYPE_CHECKING:
    from onsight.inference.predictor import Predictor
    from onsight.inference.similar import SearchSet

_COUNT, _MOST = 5, 50
_MOST_IMAGES = 50_000  # to be searched: more would be looked at for too long at first
_OPENING = {"Retry-After": "10"}


class Similar:
    """Keeps what has been opened for each model.

    is_private: whether only this machine or who has the token may ask, for
    training images are shown to nobody else.
    """

    def __init__(self, shelf: Shelf, limits: Limits, held: Held, is_private: bool) -> None:
        self._shelf = shelf
        self._limits = limits
        self._held = held
        self._is_private = is_private
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="similar")
        self._opened: dict[Served, asyncio.Future[_Searched]] = {}

    def can(self, served: Served) -> bool:
        """Whether images can be searched, as far as is known before they are opened."""
        return self._refusal(served) is None

    async def answer(self, request: Request) -> JSONResponse:
        """The most similar images. Raises HTTPException: 501, or 503 while they are opened."""
        given = asked(request, "model", "count")
        count = min(count_of(given, "count", _COUNT), _MOST)
        served = served_for(self._shelf, given)
        reason = self._refusal(served)
        if reason:
            raise HTTPException(501, reason)
        async with one_image(request, served, self._limits, self._held) as pixels:
            searched = self._searched(served)
            loop = asyncio.get_running_loop()
            rows = await loop.run_in_executor(self._thread, searched.nearest, pixels, count)
        request.state.facts = {"model": served.name, "images": 1}
        return JSONResponse({"similar": rows})

    def _refusal(self, served: Served) -> str | None:
        """Why a model's images cannot be searched."""
        if not self._is_private:
            return "training images are shown only on this machine or with a token"
        file = getattr(served.predictor.runner, "file", None)
        if file is None:
            return "an exported model knows nothing of its training images"
        if not 0 < len(file.seen) <= _MOST_IMAGES:
            return f"only 1 to {_MOST_IMAGES:,} training images can be searched"
        opened = self._opened.get(served)
        failed = opened is not None and opened.done() and opened.exception() is not None
        return "the training images cannot be opened: see the log" if failed else None

    def _searched(self, served: Served) -> "_Searched":
        """What has been opened; the first time, it begins. Raises HTTPException (503)."""
        if served not in self._opened:
            self._opened = {
                one: task for one, task in self._opened.items() if one is self._shelf.get(one.name)
            }
            loop = asyncio.get_running_loop()
            task = loop.run_in_executor(self._thread, _open, self._shelf.load, served.place)
            self._opened[served] = task
        if not self._opened[served].done():
            raise HTTPException(
                503, "the training images are being opened: try again", headers=_OPENING
            )
        return self._opened[served].result()


class _Searched:
    """A model of its own, and the images to search with it."""

    def __init__(self, predictor: "Predictor", images: "SearchSet") -> None:
        self._predictor = predictor
        self._images = images

    def nearest(self, pixels: Pixels, count: int) -> list[dict[str, Any]]:
        """The most similar images to one, uint8 (H, W, C), as JSON."""
        features = self._predictor.runner.run(pixels[np.newaxis], features=True).features
        assert features is not None
        found = self._images.search(features, count)[0]
        return [
            {"label": one.label, "similarity": one.similarity, "image": _as_url(one.pixels)}
            for one in (self._images.neighbour(*pair) for pair in found)
        ]


def _open(load: Load, place: Path) -> _Searched:
    from onsight.inference.similar import open_search_set
    from onsight.report.console import SilentReporter

    try:
        predictor = load(place)
        return _Searched(predictor, open_search_set(predictor, None, reporter=SilentReporter()))
    except OnsightError as error:
        log("training images not opened", error=str(error))
        raise


def _as_url(pixels: Pixels) -> str:
    data = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(data, "PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
