"""What happens around every request: counts, a line in the log, safe headers, honest failures."""

import asyncio
import time
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onsight.serve.gate import refuse
from onsight.serve.logs import log
from onsight.serve.metrics import Metrics

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_DISCONNECTED = 499  # as nginx logs it
_OTHER = "(other)"


class Observer:
    """The outermost layer. routes: what may be named in logs and metrics; a path may say anything.

    is_stopping: whether new requests are to be refused, since the server is about to end.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        routes: frozenset[str],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = routes
        self._is_stopping = is_stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and see what becomes of it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = time.monotonic()
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if self._is_stopping():
                    headers["Connection"] = "close"
            await send(message)

        try:
            await self._answer(scope, receive, watched)
        except ClientDisconnect:
            status = _DISCONNECTED
        except (asyncio.CancelledError, Exception) as error:
            stopped = isinstance(error, asyncio.CancelledError)
            log("request failed", error=repr(error))
            if not status:
                code, reason = (503, "stopping") if stopped else (500, "the server failed")
                await refuse(code, reason)(scope, receive, watched)
        finally:
            self._note(scope, status, time.monotonic() - started)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_stopping():
            response = refuse(503, "the server is stopping")
            response.headers["Retry-After"] = "5"
            return await response(scope, receive, send)
        return await self._app(scope, receive, send)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope["path"] if scope["path"] in self._routes else _OTHER
        self._metrics.requests.labels(route, status).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        facts = scope.get("state", {}).get("facts", {})
        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else _OTHER
        log(
            "request",
            method=method,
            route=route,
            status=status,
            milliseconds=round(1000 * seconds, 1),
            **facts,
        )
