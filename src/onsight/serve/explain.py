"""POST /explain: an image with the heat of what spoke for a class laid over it, as a PNG."""

import io
from importlib.util import find_spec
from urllib.parse import quote

import numpy as np
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onsight.data.pillow_pixels import Pixels
from onsight.errors import OnsightError
from onsight.serve.ask import asked, one_image, served_for
from onsight.serve.body import Held
from onsight.serve.served import Served
from onsight.serve.settings import Limits
from onsight.serve.shelf import Shelf

_SIDE = 320  # pixels of the longer side of what is drawn, at least


def can_explain(served: Served) -> bool:
    """Whether heat maps can be drawn: only with torch's network, and with their library."""
    runner = served.predictor.runner
    return hasattr(runner, "classifier") and find_spec("captum") is not None


class Explain:
    """Draws in the model's own thread, between two batches."""

    def __init__(self, shelf: Shelf, limits: Limits, held: Held) -> None:
        self._shelf = shelf
        self._limits = limits
        self._held = held

    async def answer(self, request: Request) -> Response:
        """The drawing, for the class that is asked for or else predicted. Raises HTTPException."""
        given = asked(request, "model", "class")
        served = served_for(self._shelf, given)
        name = given.get("class")
        if name is not None and name not in served.classes:
            raise HTTPException(404, "the model has no class of that name: see /model")
        if not can_explain(served):
            raise HTTPException(
                501, "heat maps need a run folder or model file, and onsight[heatmaps] installed"
            )
        async with one_image(request, served, self._limits, self._held) as pixels:
            try:
                found, png = await served.batcher.call(lambda: _draw(served, pixels, name))
            except OnsightError as error:
                raise HTTPException(501, str(error)) from error
        request.state.facts = {"model": served.name, "images": 1}
        return Response(png, media_type="image/png", headers={"X-Onsight-Class": quote(found)})


def _draw(served: Served, pixels: Pixels, name: str | None) -> tuple[str, bytes]:
    """(class, PNG) of an image uint8 (H, W, C). Raises ModelError."""
    import torch

    from onsight.heatmaps.heat import heat_maps
    from onsight.heatmaps.overlay import enlarged, overlay

    batch = np.stack([pixels])  # a copy: torch warns of arrays that are read-only
    if name is None:
        row = served.predictor.runner.run(batch).probabilities[0]
        name = served.classes[int(row.argmax())]
    place = torch.tensor([served.classes.index(name)])
    heat = heat_maps(served.predictor.classifier, torch.from_numpy(batch), place)[0]
    shown, heat = enlarged(batch[0], heat, _SIDE)
    data = io.BytesIO()
    Image.fromarray(overlay(shown, heat)).save(data, "PNG")
    return name, data.getvalue()
