"""POST /predict: the classes of one image, or of several in a form."""

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse

from onsight.serve.ask import asked, count_of, served_for
from onsight.serve.batcher import Failed, QueueFull
from onsight.serve.body import Held, Part, busy, read_parts
from onsight.serve.served import Classified, Outcome, Served
from onsight.serve.settings import Limits
from onsight.serve.shelf import Shelf

_TOP = 5
_FAILED = "the model failed on this image"


class Predict:
    """Reads the images while counting them, and answers in their order."""

    def __init__(self, shelf: Shelf, limits: Limits, held: Held) -> None:
        self._shelf = shelf
        self._limits = limits
        self._held = held

    async def answer(self, request: Request) -> JSONResponse:
        """A prediction for each image, or why there is none. Raises HTTPException."""
        given = asked(request, "model", "top")
        top = count_of(given, "top", _TOP)
        served = served_for(self._shelf, given)
        with self._held.share() as share:
            try:
                with served.batcher.room(1):  # a full queue is said before the images are read
                    pass
                parts = await read_parts(request, self._limits, share)
                outcomes = await served.outcomes([part.content for part in parts])
            except QueueFull as error:
                raise busy() from error
        rows = [_row(served, *pair, top) for pair in zip(parts, outcomes, strict=True)]
        request.state.facts = {"model": served.name, "images": len(parts), "bytes": share.taken}
        return JSONResponse({"model": served.name, "predictions": rows}, _status(outcomes))


def _status(outcomes: list[Outcome]) -> int:
    """422 if no image can be used, 500 if the model failed on all that can."""
    if any(isinstance(one, Classified) for one in outcomes):
        return 200
    return 500 if any(isinstance(one, Failed) for one in outcomes) else 422


def _row(served: Served, part: Part, outcome: Outcome, top: int) -> dict[str, object]:
    row: dict[str, object] = {
        "name": part.name,
        "predicted": None,
        "probability": None,
        "probabilities": [],
        "out_of_distribution": None,
        "problem": None,
    }
    if not isinstance(outcome, Classified):
        return row | {"problem": _FAILED if isinstance(outcome, Failed) else str(outcome)}
    ranked = np.argsort(-outcome.probabilities, kind="stable")[:top]
    likely = [
        {"class": served.classes[place], "probability": float(outcome.probabilities[place])}
        for place in ranked
    ]
    best = likely[0]
    return row | {
        "predicted": best["class"],
        "probability": best["probability"],
        "probabilities": likely,
        "out_of_distribution": outcome.out_of_distribution,
    }
