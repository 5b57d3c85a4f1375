"""The application: its routes, and the layers around them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from onsight.serve.body import Held
from onsight.serve.explain import Explain
from onsight.serve.gate import Gate, TokenCheck, refuse
from onsight.serve.metrics import Metrics
from onsight.serve.observe import Observer
from onsight.serve.page_files import page_files
from onsight.serve.predict import Predict
from onsight.serve.settings import Access, Limits
from onsight.serve.shelf import Shelf
from onsight.serve.show import Show
from onsight.serve.similar import Similar

_REVIVE_SECONDS = 0.25

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(
    shelf: Shelf,
    access: Access,
    limits: Limits,
    metrics: Metrics,
    is_stopping: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """Everything that answers requests. is_stopping: whether new ones are to be refused."""
    held = Held(limits.held_bytes)
    is_private = access.is_local or bool(access.token)
    similar = Similar(shelf, limits, held, is_private)
    show = Show(shelf, similar, metrics, limits)
    posts = {
        "/predict": Predict(shelf, limits, held).answer,
        "/explain": Explain(shelf, limits, held).answer,
        "/similar": similar.answer,
    }
    gets = {
        "/model": show.model,
        "/models": show.models,
        "/health": show.health,
        "/ready": show.ready,
        "/metrics": show.metrics,
        "/openapi.json": show.openapi,
    }
    pages = _pages()
    routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()]
    routes += [
        Route(path, endpoint, methods=["GET"]) for path, endpoint in {**gets, **pages}.items()
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _refusal, Exception: _failure},
        middleware=_layers(access),
        lifespan=lambda app: _lifespan(shelf),
    )
    app.router.redirect_slashes = False
    return Observer(app, metrics, frozenset({*posts, *gets, *pages}), is_stopping)


def _layers(access: Access) -> list[Middleware]:
    layers = [Middleware(Gate, access=access)]
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


def _pages() -> dict[str, Endpoint]:
    """A route for each file of the page."""

    def route(name: str) -> Endpoint:
        file = files[name]

        async def send(request: Request) -> Response:
            headers = {"ETag": file.tag, "Cache-Control": "no-cache"}
            if request.headers.get("if-none-match") == file.tag:
                return Response(status_code=304, headers=headers)
            return Response(file.content, media_type=file.media_type, headers=headers)

        return send

    files = page_files()
    routes = {f"/static/{name}": route(name) for name in files}
    return routes | ({"/": route("index.html")} if "index.html" in files else {})


async def _refusal(request: Request, error: Exception) -> Response:
    """Every refusal says why in the same form."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _failure(request: Request, error: Exception) -> Response:
    """A failure of ours; what it was is said in the log alone."""
    return refuse(500, "the server failed: see its log")


@asynccontextmanager
async def _lifespan(shelf: Shelf) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(shelf.watch()), asyncio.create_task(_revive(shelf))]
    yield
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    shelf.close()


async def _revive(shelf: Shelf) -> None:
    while True:
        await asyncio.sleep(_REVIVE_SECONDS)
        shelf.revive()
