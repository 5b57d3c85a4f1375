"""HTTP connections that end in time: uvicorn sets no deadline and no bound for what it receives."""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onsight.serve.settings import Limits

_DAMAGED = 400, "this is not a valid HTTP request"
_LATE = 408, "the request did not arrive in time"
_LONG = 431, "the request's line and headers are too long"
_CROWDED = 503, "too many connections: try again in a moment"

_HEADER_BYTES = 4  # around its name and value

Refused = Callable[[int], object]


class BoundedProtocol(HttpToolsProtocol):
    """A connection with a deadline for each request as a whole, and for taking its answer.

    refused: called with the status of what is refused before it becomes a request.
    """

    def __init__(self, *args: Any, limits: Limits, refused: Refused, **named: Any) -> None:
        super().__init__(*args, **named)
        self._limits = limits
        self._refused = refused
        self._refusal = _DAMAGED
        self._in_head = self._is_partial = False
        self._head_bytes = self._counted = 0  # as received, and as parsed
        self._deadline: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless there are too many; the first request must come in time."""
        super().connection_made(transport)
        self._start_deadline()
        if len(self.connections) > self._limits.connections:
            self._refuse(_CROWDED)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        self._stop_deadline()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come; a request that has begun must be whole before its deadline."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)  # a header that has no end is not reported yet
            if self._head_bytes > self._limits.head_bytes:
                self._refuse(_LONG)
        if self.transport.is_closing() or not (self._is_partial or self._rests()):
            self._stop_deadline()
        elif self._deadline is None:
            self._start_deadline()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head = self._is_partial = True
        self._head_bytes = self._counted = 0

    def on_url(self, url: bytes) -> None:
        """Count the request's line."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, or what follows a body in chunks."""
        super().on_header(name, value)
        self._count(len(name) + len(value) + _HEADER_BYTES)

    def on_headers_complete(self) -> None:
        """The request is given to the app."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is whole; if it was refused before that, the connection rests now."""
        super().on_message_complete()
        self._is_partial = False
        self._stop_deadline()
        if self._rests():
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def pause_writing(self) -> None:
        """The client does not take its answer: it has as long as for a request."""
        super().pause_writing()
        self._stuck = self.loop.call_later(self._limits.receive_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client takes its answer."""
        super().resume_writing()
        if self._stuck:
            self._stuck.cancel()
            self._stuck = None

    def timeout_keep_alive_handler(self) -> None:
        """Close a resting connection, whether or not the last answer was taken."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser does not take, with the reason if it is ours."""
        self._refuse(self._refusal)

    def _rests(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _count(self, count: int) -> None:
        """Count bytes of the head. Raises ValueError, which the parser passes on as its own."""
        self._counted += count
        if self._counted > self._limits.head_bytes:
            self._refusal = _LONG
            raise ValueError

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self._limits.receive_seconds, self._expire)

    def _stop_deadline(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        """Refuse a request that is late, unless it has to wait for the answer to one before it."""
        self._deadline = None
        if self.pipeline or (self._in_head and not self._rests()):
            self._start_deadline()
        else:
            self._refuse(_LATE)

    def _refuse(self, refusal: tuple[int, str]) -> None:
        """Answer outside of any app and close; an answer that has begun is only broken off."""
        if self.transport.is_closing():
            return
        status, reason = refusal
        cycle = None if self._rests() else self.cycle
        was_answered = (
            self._is_partial and not self._in_head if cycle is None else cycle.response_started
        )
        if not was_answered:
            body = json.dumps({"error": reason}).encode()
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
                "content-type: application/json\r\n"
                f"content-length: {len(body)}\r\n"
                f"{'retry-after: 1' if status == 503 else 'x-content-type-options: nosniff'}\r\n"
                "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()
        self._refused(status)
