"""The answers that only tell: the models, and whether the server is up and ready."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from onsight.serve.ask import asked, served_for
from onsight.serve.card import card
from onsight.serve.explain import can_explain
from onsight.serve.metrics import CONTENT_TYPE, Metrics
from onsight.serve.openapi import document
from onsight.serve.settings import Limits
from onsight.serve.shelf import Shelf
from onsight.serve.similar import Similar


class Show:
    """What GET requests are answered."""

    def __init__(self, shelf: Shelf, similar: Similar, metrics: Metrics, limits: Limits) -> None:
        self._shelf = shelf
        self._similar = similar
        self._metrics = metrics
        self._limits = limits

    async def model(self, request: Request) -> JSONResponse:
        """The facts of a model."""
        served = served_for(self._shelf, asked(request, "model"))
        can = {"explain": can_explain(served), "similar": self._similar.can(served)}
        return JSONResponse(card(served, can))

    async def models(self, request: Request) -> JSONResponse:
        """The names of all models, and the bytes that a request may have."""
        names = self._shelf.names
        told = {"models": names, "default": names[0], "max_bytes": self._limits.body_bytes}
        return JSONResponse(told)

    async def health(self, request: Request) -> JSONResponse:
        """The process is up."""
        return JSONResponse({"status": "up"})

    async def ready(self, request: Request) -> JSONResponse:
        """Whether every model is loaded and its worker alive; 503 if not."""
        states = self._shelf.states()
        ready = all(state.startswith("ready") for state in states.values())
        return JSONResponse({"ready": ready, "models": states}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """What the server has counted."""
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)

    async def openapi(self, request: Request) -> JSONResponse:
        """The description of this API."""
        return JSONResponse(document(self._limits))
