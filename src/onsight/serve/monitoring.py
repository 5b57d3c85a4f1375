"""The server's log and metrics, and the middleware that records every request in both."""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onsight.serve.access import error_response

METRICS_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_CLIENT_DISCONNECTED = 499  # the status that nginx logs
_OTHER = "(other)"


def log(event: str, **facts: object) -> None:
    """Write one line of JSON to stderr; callers pass no image data and no file names."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"time": time, "event": event, **facts}, default=str)
    sys.stderr.write(line + "\n")  # stderr is line-buffered


class JsonLogHandler(logging.Handler):
    """Writes the log records of libraries in the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, with its exception if there is one."""
        facts = {"error": repr(record.exc_info[1])} if record.exc_info else {}
        log("library", level=record.levelname, message=record.getMessage(), **facts)


class ServerMetrics:
    """Prometheus metrics of one server; every method may be called from any thread."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "onsight_requests",
            "Requests by route and status.",
            ["route", "code"],
            registry=registry,
        )
        self.seconds = Histogram(
            "onsight_request_seconds",
            "Seconds from receiving a request's headers to the end of its response.",
            ["route"],
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self.images = Counter(
            "onsight_images",
            "Images by model and outcome: predicted or failed.",
            ["model", "outcome"],
            registry=registry,
        )
        self.batch_images = Histogram(
            "onsight_batch_images",
            "Images in a batch.",
            ["model"],
            buckets=_BATCH_BUCKETS,
            registry=registry,
        )
        self.restarts = Counter(
            "onsight_worker_restarts",
            "Worker threads restarted after they died.",
            ["model"],
            registry=registry,
        )
        self.queue = Gauge(
            "onsight_queue_images",
            "Images waiting or being processed.",
            ["model"],
            registry=registry,
        )

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class RequestMonitor:
    """The outermost middleware: counts and logs requests, adds safe headers, reports failures."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: ServerMetrics,
        routes: frozenset[str],  # named in logs and metrics; other paths could contain anything
        is_stopping: Callable[[], bool],  # True once new requests must be rejected
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = routes
        self._is_stopping = is_stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request and record its outcome."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = time.monotonic()
        status = 0

        async def send_safely(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _SAFE_HEADERS.items():
                    headers.setdefault(name, value)
                if self._is_stopping():
                    headers["Connection"] = "close"
            await send(message)

        try:
            await self._respond(scope, receive, send_safely)
        except ClientDisconnect:
            status = _CLIENT_DISCONNECTED
        except (asyncio.CancelledError, Exception) as error:
            log("request failed", error=repr(error))
            if not status:
                is_cancelled = isinstance(error, asyncio.CancelledError)
                code, reason = (503, "stopping") if is_cancelled else (500, "the server failed")
                await error_response(code, reason)(scope, receive, send_safely)
        finally:
            self._record(scope, status, time.monotonic() - started)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_stopping():
            response = error_response(503, "the server is stopping")
            response.headers["Retry-After"] = "5"
            return await response(scope, receive, send)
        return await self._app(scope, receive, send)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
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
