"""`onsight serve`: listen, load the models, answer requests until a signal stops the server."""

import asyncio
import errno
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onsight.data.decoding_memory import MEMORY
from onsight.errors import ConfigError
from onsight.inference.predictor import load
from onsight.serve.access import Access, Limits
from onsight.serve.app import make_app
from onsight.serve.batcher import yield_to_clients
from onsight.serve.monitoring import JsonLogHandler, ServerMetrics, log
from onsight.serve.registry import Load, ModelRegistry
from onsight.text import printable
from onsight_explain.threads import usable_cores

_DRAIN_SECONDS = 0.5  # time in which a stopping server still answers new requests (with 503)
_BACKLOG = 1024  # maximum number of connections waiting to be accepted
_MAX_PORT = 65535
_SPARE_FILES = 256  # open files beyond one per connection

_MALFORMED = 400, "this is not a valid HTTP request"
_LATE = 408, "the request did not arrive in time"
_LONG = 431, "the request line and headers are too long"
_CROWDED = 503, "too many connections: try again in a moment"
_HEADER_OVERHEAD = 4  # bytes around a header's name and value


def serve(
    models: Sequence[Path],
    access: Access,
    limits: Limits,
    *,
    device: str,
    module: str | None,
    member: str,
) -> None:
    """Serve models until a signal stops the server.

    Raises ConfigError, ModelError, DeviceError.
    """
    access.check()
    if module and len(models) > 1:
        raise ConfigError("--module is the network of one model: name one MODEL with it")
    if member and len(models) > 1:
        raise ConfigError("--member chooses a network of one model: name one MODEL with it")
    load_model = partial(load, device=device, module=module, member=member)
    with listen(access) as listener:
        run(listener, models, load_model, access, limits)


def run(
    listener: socket.socket, models: Sequence[Path], load: Load, access: Access, limits: Limits
) -> None:
    """Load models and answer requests on a socket until a signal; call it in the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT):  # while loading, and when uvicorn re-raises it
        signal.signal(number, _exit)
    metrics = ServerMetrics()
    decoders = ThreadPoolExecutor(usable_cores(), "decode", yield_to_clients)
    registry = ModelRegistry(models, load, decoders, limits.queued, metrics)
    registry.load_all()
    server = make_server(registry, access, limits, metrics)
    address = url_of(listener)
    known_limits = {**vars(limits), "decoding_bytes": MEMORY.total_bytes}
    log("serving", url=address, models=registry.devices(), limits=known_limits)
    server.greeting = f"serving {', '.join(registry.names)} on {address} (Ctrl-C stops)"
    server.run([listener])


def listen(access: Access) -> socket.socket:
    """Return a socket bound to the address in the settings. Raises ConfigError if it cannot be."""
    place = f"{access.host}:{access.port}"
    try:
        if not 0 <= access.port <= _MAX_PORT:
            raise OSError(f"ports go from 0 to {_MAX_PORT}")
        candidates = socket.getaddrinfo(access.host, access.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = candidates[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {place}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)  # until one listens, several may be bound to the same port
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {access.port} of {access.host} is in use: choose another with --port, or "
                "--port 0 for any free port"
            ) from error
        raise ConfigError(f"cannot listen on {place}: {error}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address at which a socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn's server, which finishes the requests it has accepted before it closes anything."""

    is_stopping = False
    greeting = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and print the greeting on stdout."""
        await super().startup(sockets)
        print(printable(self.greeting), flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Reject new requests from now on."""
        self.is_stopping = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the accepted requests while new ones are answered 503, then end."""
        self.is_stopping = True
        log("stopping", requests=len(self.server_state.tasks))
        await asyncio.sleep(_DRAIN_SECONDS)
        await super().shutdown(sockets)


def make_server(
    registry: ModelRegistry, access: Access, limits: Limits, metrics: ServerMetrics
) -> Server:
    """Return a server that is ready to run."""
    for name in ("uvicorn", "python_multipart"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [JsonLogHandler()], False
        logger.setLevel(logging.ERROR)  # lower levels report mistakes of clients
    _allow_open_files(limits.connections + _SPARE_FILES)

    def record_rejection(status: int) -> None:  # of a connection, before it became a request
        metrics.requests.labels("(none)", status).inc()
        log("rejected", status=status)

    app = make_app(registry, access, limits, metrics, lambda: server.is_stopping)
    protocol = partial(BoundedProtocol, limits=limits, on_rejected=record_rejection)
    config = uvicorn.Config(
        app,
        http=protocol,  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=limits.idle_seconds,  # type: ignore[arg-type]
        timeout_graceful_shutdown=limits.stop_seconds,  # type: ignore[arg-type]
    )
    server = Server(config)
    return server


class BoundedProtocol(HttpToolsProtocol):
    """An HTTP connection with limits that uvicorn lacks: deadlines, and a bound on the headers.

    Each request must arrive, and its response must be read, within `receive_seconds`.
    """

    def __init__(
        self,
        *args: Any,
        limits: Limits,
        on_rejected: Callable[[int], object],  # called with the status, if no app answered
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        self._limits = limits
        self._on_rejected = on_rejected
        self._rejection = _MALFORMED
        self._in_head = self._is_partial = False
        self._head_bytes = self._parsed_bytes = 0  # bytes of the head received and parsed
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection unless there are too many; its first request has a deadline."""
        super().connection_made(transport)
        self._start_deadline()
        if len(self.connections) > self._limits.connections:
            self._reject(_CROWDED)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadlines."""
        self._stop_deadline()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data; a request that has begun must be complete before its deadline."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)  # the parser does not report an endless header
            if self._head_bytes > self._limits.head_bytes:
                self._reject(_LONG)
        if self.transport.is_closing() or not (self._is_partial or self._is_idle()):
            self._stop_deadline()
        elif self._deadline is None:
            self._start_deadline()

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._in_head = self._is_partial = True
        self._head_bytes = self._parsed_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, or a trailer after a chunked body."""
        super().on_header(name, value)
        self._count_head(len(name) + len(value) + _HEADER_OVERHEAD)

    def on_headers_complete(self) -> None:
        """Pass the request to the app."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request; if it was answered before its body arrived, the connection is now idle."""
        super().on_message_complete()
        self._is_partial = False
        self._stop_deadline()
        if self._is_idle():
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def pause_writing(self) -> None:
        """Start the deadline for a client that does not read its response."""
        super().pause_writing()
        self._unread = self.loop.call_later(self._limits.receive_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel that deadline."""
        super().resume_writing()
        if self._unread:
            self._unread.cancel()
            self._unread = None

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if its last response was not read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Reject a request that the parser rejects; called by uvicorn.

        If `_count_head` made the parser fail, the reason is that the head is too long.
        """
        self._reject(self._rejection)

    def _is_idle(self) -> bool:
        """Return whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _count_head(self, count: int) -> None:
        """Count bytes of the head. Raises ValueError, which makes the parser fail."""
        self._parsed_bytes += count
        if self._parsed_bytes > self._limits.head_bytes:
            self._rejection = _LONG
            raise ValueError

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self._limits.receive_seconds, self._expire)

    def _stop_deadline(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        """Reject a late request, unless it has to wait for the response to one before it."""
        self._deadline = None
        if self.pipeline or (self._in_head and not self._is_idle()):
            self._start_deadline()
        else:
            self._reject(_LATE)

    def _reject(self, rejection: tuple[int, str]) -> None:
        """Respond without the app and close; a response that has begun is cut short."""
        if self.transport.is_closing():
            return
        status, reason = rejection
        cycle = None if self._is_idle() else self.cycle
        was_answered = (
            self._is_partial and not self._in_head if cycle is None else cycle.response_started
        )
        if not was_answered:
            self.transport.write(_raw_error(status, reason))
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()
        self._on_rejected(status)


def _raw_error(status: int, reason: str) -> bytes:
    """Return an error as a whole HTTP response."""
    body = json.dumps({"error": reason}).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        f"{'retry-after: 1' if status == 503 else 'x-content-type-options: nosniff'}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body


def _allow_open_files(count: int) -> None:
    """Raise the number of files this process may open to `count`, or the hard limit if lower."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _exit(number: int, frame: FrameType | None) -> None:
    """End the process at once: a usual exit waits until threads have decoded all that is queued."""
    os._exit(128 + number)
