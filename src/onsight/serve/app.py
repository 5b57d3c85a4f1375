"""The web application: its routes and their responses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from importlib.resources import files
from urllib.parse import quote

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from onsight.data.decoding_memory import MemoryBusy
from onsight.data.pixels import Pixels, encode_png
from onsight.errors import ImageError, OnsightError
from onsight.inference.predictor import top_classes
from onsight.installation import is_installed
from onsight.serve.access import Access, AsciiJson, HostCheck, Limits, TokenCheck, error_response
from onsight.serve.batcher import InferenceFailed, QueueFull
from onsight.serve.body import MemoryBudget, Upload, busy, read_uploads
from onsight.serve.descriptions import model_card, openapi_document
from onsight.serve.docs_page import docs_page
from onsight.serve.monitoring import METRICS_TYPE, RequestMonitor, ServerMetrics
from onsight.serve.registry import Classification, ModelRegistry, Outcome, ServedModel
from onsight.serve.similar import SimilarImages

_DEFAULT_COUNT, _MAX_COUNT = 5, 1000  # default and largest value of a numeric query parameter
_MAX_SIMILAR = 50
_HEAT_MAP_SIDE = 320  # pixels of the longer side, at least
_MEDIA_TYPES = {  # of the page's files
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(
    registry: ModelRegistry,
    access: Access,
    limits: Limits,
    metrics: ServerMetrics,
    is_stopping: Callable[[], bool] = lambda: False,  # True once new requests must be rejected
) -> ASGIApp:
    """Return the application that answers every request."""
    api = Api(registry, access, limits, metrics)
    posts = {"/predict": api.predict, "/explain": api.explain, "/similar": api.similar}
    gets = {
        "/model": api.model,
        "/models": api.models,
        "/health": api.health,
        "/ready": api.ready,
        "/metrics": api.metrics,
        "/openapi.json": api.openapi,
        "/docs": api.docs,
        **_page_routes(),
    }
    routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()]
    routes += [Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _describe_rejection, Exception: _hide_failure},
        middleware=_middleware(access),
        lifespan=lambda app: _lifespan(registry),
    )
    app.router.redirect_slashes = False
    return RequestMonitor(app, metrics, frozenset({*posts, *gets}), is_stopping)


class Api:
    """The endpoints. They raise HTTPException for requests they reject."""

    def __init__(
        self, registry: ModelRegistry, access: Access, limits: Limits, metrics: ServerMetrics
    ) -> None:
        self._registry = registry
        self._limits = limits
        self._metrics = metrics
        self._memory = MemoryBudget(limits.held_bytes)
        self._needs_token = bool(access.token)
        self._similar_images = SimilarImages(registry, access.is_local or self._needs_token)

    async def predict(self, request: Request) -> AsciiJson:
        """POST /predict: a prediction, or the reason there is none, for each image in order."""
        params = query_params(request, "model", "top")
        top = _read_count(params, "top")
        model = self._select_model(params)
        with self._memory.reserve() as reservation:
            try:
                with model.batcher.admit(1):  # reject with a full queue before reading images
                    pass
                uploads = await read_uploads(request, self._limits, reservation)
                outcomes = await model.classify([upload.content for upload in uploads])
            except (QueueFull, MemoryBusy) as error:
                raise busy() from error
        rows = [
            _prediction(model, upload, outcome, top)
            for upload, outcome in zip(uploads, outcomes, strict=True)
        ]
        request.state.facts = {
            "model": model.name,
            "images": len(uploads),
            "bytes": reservation.bytes,
        }
        return AsciiJson({"model": model.name, "predictions": rows}, _status(outcomes))

    async def explain(self, request: Request) -> Response:
        """POST /explain: a PNG of the image under a heat map of the evidence for a class."""
        params = query_params(request, "model", "class")
        model = self._select_model(params)
        class_name = params.get("class")
        if class_name is not None and class_name not in model.classes:
            raise HTTPException(404, "the model has no class of that name: see /model")
        if not _can_explain(model):
            raise HTTPException(
                501, "heat maps need a run folder or model file, and onsight[heatmaps] installed"
            )
        async with self._single_image(request, model) as pixels:
            try:
                name, png = await model.batcher.call(
                    lambda: _draw_heat_map(model, pixels, class_name)
                )
            except OnsightError as error:
                raise HTTPException(501, str(error)) from error
        request.state.facts = {"model": model.name, "images": 1}
        return Response(
            png,
            media_type="image/png",
            headers={"X-Onsight-Class": quote(name, errors="surrogateescape")},
        )

    async def similar(self, request: Request) -> AsciiJson:
        """POST /similar: the most similar training images; 503 while they are being opened."""
        params = query_params(request, "model", "count")
        count = min(_read_count(params, "count"), _MAX_SIMILAR)
        model = self._select_model(params)
        reason = self._similar_images.why_unavailable(model)
        if reason:
            raise HTTPException(501, reason)
        async with self._single_image(request, model) as pixels:
            rows = await self._similar_images.search(model, pixels, count)
        request.state.facts = {"model": model.name, "images": 1}
        return AsciiJson({"similar": rows})

    async def model(self, request: Request) -> AsciiJson:
        """GET /model: the facts of a model."""
        model = self._select_model(query_params(request, "model"))
        capabilities = {
            "explain": _can_explain(model),
            "similar": self._similar_images.why_unavailable(model) is None,
        }
        return AsciiJson(model_card(model, capabilities))

    async def models(self, request: Request) -> AsciiJson:
        """GET /models: the names of all models, and the size limit of a request."""
        names = self._registry.names
        return AsciiJson(
            {"models": names, "default": names[0], "max_bytes": self._limits.body_bytes}
        )

    async def health(self, request: Request) -> AsciiJson:
        """GET /health: the process is up."""
        return AsciiJson({"status": "up"})

    async def ready(self, request: Request) -> AsciiJson:
        """GET /ready: 503 unless every model is loaded and its worker alive."""
        statuses = self._registry.statuses()
        ready = all(status.startswith("ready") for status in statuses.values())
        return AsciiJson({"ready": ready, "models": statuses}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """GET /metrics, for Prometheus."""
        return Response(self._metrics.exposition(), media_type=METRICS_TYPE)

    async def openapi(self, request: Request) -> AsciiJson:
        """GET /openapi.json: the description of this API."""
        return AsciiJson(openapi_document(self._limits))

    async def docs(self, request: Request) -> HTMLResponse:
        """GET /docs: the same description as a page."""
        document = openapi_document(self._limits)
        return HTMLResponse(docs_page(document, str(request.base_url), self._needs_token))

    def _select_model(self, params: dict[str, str]) -> ServedModel:
        """Return the model named by the parameter `model`, or the first one."""
        model = self._registry.get(params.get("model"))
        if model is None:
            raise HTTPException(404, "there is no model of that name: see /models")
        return model

    @asynccontextmanager
    async def _single_image(self, request: Request, model: ServedModel) -> AsyncIterator[Pixels]:
        """Yield the only image of a request, uint8 (H, W, C), and hold its place in the queue."""
        try:
            with model.batcher.admit(1), self._memory.reserve() as reservation:
                uploads = await read_uploads(request, self._limits, reservation)
                if len(uploads) > 1:
                    raise HTTPException(400, "this URL accepts one image at a time")
                yield await model.decode(uploads[0].content)
        except (QueueFull, MemoryBusy) as error:
            raise busy() from error
        except ImageError as error:
            raise HTTPException(422, str(error)) from error


def query_params(request: Request, *names: str) -> dict[str, str]:
    """Return the query parameters. Raises HTTPException (400) for unknown or repeated ones."""
    pairs = request.query_params.multi_items()
    params = dict(pairs)
    if params.keys() - set(names):
        raise HTTPException(400, f"unknown parameter: this URL accepts {' and '.join(names)}")
    if len(pairs) > len(params):
        raise HTTPException(400, "a parameter is given twice")
    return params


def _read_count(params: dict[str, str], name: str) -> int:
    text = params.get(name, str(_DEFAULT_COUNT))
    is_number = text.isascii() and text.isdecimal() and len(text) < 9
    if not (is_number and 1 <= int(text) <= _MAX_COUNT):
        raise HTTPException(400, f"{name} must be a whole number from 1 to {_MAX_COUNT:,}")
    return int(text)


def _status(outcomes: list[Outcome]) -> int:
    """Return 422 if no image can be used, 500 if the model failed on all that can."""
    if any(isinstance(outcome, Classification) for outcome in outcomes):
        return 200
    return 500 if any(isinstance(outcome, InferenceFailed) for outcome in outcomes) else 422


def _prediction(
    model: ServedModel, upload: Upload, outcome: Outcome, top: int
) -> dict[str, object]:
    row: dict[str, object] = {
        "name": upload.name,
        "predicted": None,
        "probability": None,
        "probabilities": [],
        "out_of_distribution": None,
        "problem": None,
    }
    if isinstance(outcome, InferenceFailed):
        return row | {"problem": "the model failed on this image"}
    if not isinstance(outcome, Classification):
        return row | {"problem": str(outcome)}
    best = top_classes(model.classes, outcome.probabilities, top)
    likely = [{"class": name, "probability": value} for name, value in best]
    return row | {
        "predicted": likely[0]["class"],
        "probability": likely[0]["probability"],
        "probabilities": likely,
        "out_of_distribution": outcome.out_of_distribution,
    }


def _can_explain(model: ServedModel) -> bool:
    """Heat maps need the network in torch, and captum."""
    return hasattr(model.predictor.runner, "classifier") and is_installed("captum")


def _draw_heat_map(model: ServedModel, pixels: Pixels, name: str | None) -> tuple[str, bytes]:
    """Return (class, PNG) for an image uint8 (H, W, C); None is the predicted class.

    Runs in the model's compute thread. Raises ModelError.
    """
    import torch

    from onsight.heatmaps.heat import heat_maps
    from onsight.heatmaps.overlay import enlarge, overlay

    batch = np.stack([pixels])  # a copy: torch warns about read-only arrays
    if name is None:
        probabilities = model.predictor.runner.run(batch).probabilities[0]
        name = model.classes[int(probabilities.argmax())]
    target = torch.tensor([model.classes.index(name)])
    heat = heat_maps(model.predictor.classifier, torch.from_numpy(batch), target)[0]
    image, heat = enlarge(batch[0], heat, _HEAT_MAP_SIDE)
    return name, encode_png(overlay(image, heat))


# --------------------------------------------------------------------------------- the page


def _page_routes() -> dict[str, Endpoint]:
    """Return a route for each file of the page: names in URLs are never looked up on the disk."""
    routes = {}
    for entry in files("onsight.serve").joinpath("page").iterdir():
        media_type = _MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type and entry.is_file():
            routes[f"/static/{entry.name}"] = _send_file(entry.read_bytes(), media_type)
    return routes | {"/": routes["/static/index.html"]}


def _send_file(content: bytes, media_type: str) -> Endpoint:
    etag = f'"{sha256(content).hexdigest()[:16]}"'

    async def send(request: Request) -> Response:
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return send


# -------------------------------------------------------------------- around the endpoints


def _middleware(access: Access) -> list[Middleware]:
    layers = [Middleware(HostCheck, access=access)]
    if access.origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=access.origins,
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type"],
                expose_headers=["X-Onsight-Class"],
            )
        )
    if access.token:
        layers.append(Middleware(TokenCheck, token=access.token))
    return layers


async def _describe_rejection(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return AsciiJson({"error": error.detail}, error.status_code, headers=error.headers)


async def _hide_failure(request: Request, error: Exception) -> Response:
    """Answer an internal error without its details, which are only in the log."""
    return error_response(500, "the server failed: see its log")


@asynccontextmanager
async def _lifespan(registry: ModelRegistry) -> AsyncIterator[None]:
    tasks = [
        asyncio.create_task(registry.watch()),
        asyncio.create_task(registry.restart_dead_workers()),
    ]
    yield
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    registry.close()
