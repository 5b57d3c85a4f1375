"""Receive the images of a request: everything is counted as it arrives, and nothing is stored."""

import io
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import Request

from onsight.serve.access import Limits

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_FIELD = "images"
_RETRY_SOON = {"Retry-After": "1"}


@dataclass
class Upload:
    """An encoded image as it was sent."""

    name: str | None  # file name, if the client sent one
    content: bytes


class MemoryBudget:
    """Bounds the bytes of all request bodies that are in memory at the same time."""

    def __init__(self, max_bytes: int) -> None:
        self.free_bytes = max_bytes

    @contextmanager
    def reserve(self) -> Iterator["Reservation"]:
        """Yield an empty reservation for one request, and release it at the end."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self.free_bytes += reservation.bytes


class Reservation:
    """The bytes that one request has reserved."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.bytes = 0

    def add(self, count: int) -> None:
        """Reserve more bytes. Raises HTTPException (503) if they exceed the budget."""
        if count > self._budget.free_bytes:
            raise busy()
        self._budget.free_bytes -= count
        self.bytes += count


def busy() -> HTTPException:
    """Return the error for a request that exceeds the server's current capacity."""
    return HTTPException(503, "the server is busy: try again in a moment", headers=_RETRY_SOON)


async def read_uploads(request: Request, limits: Limits, reservation: Reservation) -> list[Upload]:
    """Read the images of a request. Raises HTTPException: 400, 413, 415 or 503."""
    media_type, options = parse_options_header(request.headers.get("content-type"))
    chunks = _read_chunks(request, limits.body_bytes, reservation)
    if media_type == b"multipart/form-data":
        return await _read_form(chunks, options.get(b"boundary", b""), limits)
    if media_type not in (b"", b"application/octet-stream") and not media_type.startswith(
        b"image/"
    ):
        raise HTTPException(
            415,
            "send images as multipart/form-data (curl -F images=@FILE), or one as image/* or "
            "application/octet-stream",
        )
    content = io.BytesIO()  # getvalue() does not copy
    async for chunk in chunks:
        content.write(chunk)
    return [Upload(None, content.getvalue())]


async def _read_chunks(
    request: Request, limit: int, reservation: Reservation
) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises HTTPException: 413 or 503."""
    declared = request.headers.get("content-length", "0")
    # Malformed lengths were rejected by the HTTP protocol.
    _check_size(int(declared) if declared.isdecimal() else 0, limit)
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        _check_size(received, limit)
        reservation.add(len(chunk))
        yield chunk


def _check_size(count: int, limit: int) -> None:
    if count > limit:
        raise HTTPException(413, f"the request is larger than {limit:,} bytes")


async def _read_form(chunks: AsyncIterator[bytes], boundary: bytes, limits: Limits) -> list[Upload]:
    form = _Form(limits.parts)
    try:
        parser = MultipartParser(boundary, form.callbacks())
        async for chunk in chunks:
            parser.write(chunk)
        parser.finalize()
    except FormParserError as error:
        raise HTTPException(400, "the multipart form is malformed") from error
    if not form.is_complete:
        raise HTTPException(400, "the multipart form is incomplete, or has no parts")
    return form.uploads


class _Form:
    """Collects the parts of a form while it is parsed."""

    def __init__(self, max_parts: int) -> None:
        self.uploads: list[Upload] = []
        self.is_complete = False
        self._max_parts = max_parts
        self._header = self._value = b""
        self._disposition = b""
        self._content = io.BytesIO()

    def callbacks(self) -> "MultipartCallbacks":
        """Return the callbacks for python_multipart's parser."""
        return {
            "on_part_begin": self._begin_part,
            "on_header_field": self._add_to_header,
            "on_header_value": self._add_to_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add_to_content,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    def _begin_part(self) -> None:
        if len(self.uploads) == self._max_parts:
            raise HTTPException(413, f"more than {self._max_parts} images in a request")
        self._disposition = b""
        self._content = io.BytesIO()

    def _add_to_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        if options.get(b"name") != _FIELD.encode():
            raise HTTPException(400, f"each part of the form must be an image named {_FIELD}")
        name = options.get(b"filename")
        self.uploads.append(Upload(None if name is None else name.decode("utf-8", "replace"), b""))

    def _add_to_content(self, data: bytes, start: int, end: int) -> None:
        self._content.write(memoryview(data)[start:end])

    def _end_part(self) -> None:
        self.uploads[-1].content = self._content.getvalue()

    def _end(self) -> None:
        self.is_complete = bool(self.uploads)
