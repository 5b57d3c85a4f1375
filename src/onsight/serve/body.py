"""Receiving images: bytes, parts and headers are counted while they arrive, and never stored."""

import io
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import Request

from onsight.serve.settings import Limits

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FIELD = "images"
_BUSY = {"Retry-After": "1"}


@dataclass
class Part:
    """An image as it was sent: the name of its file, if one was given, and its bytes."""

    name: str | None
    content: bytes


class Held:
    """The bytes of all bodies in memory, which have a common bound."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._taken = 0

    @contextmanager
    def share(self) -> Iterator["Share"]:
        """What one request holds, until its end."""
        share = Share(self)
        try:
            yield share
        finally:
            self._taken -= share.taken

    def take(self, count: int) -> None:
        """Hold more bytes. Raises HTTPException (503)."""
        if self._taken + count > self._bound:
            raise busy()
        self._taken += count


class Share:
    """The bytes that one request holds."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self.taken = 0

    def take(self, count: int) -> None:
        """Hold more bytes. Raises HTTPException (503)."""
        self._held.take(count)
        self.taken += count


def busy() -> HTTPException:
    """The refusal of a request for which there is no room now."""
    return HTTPException(503, "the server is busy: try again in a moment", headers=_BUSY)


async def read_parts(request: Request, limits: Limits, share: Share) -> list[Part]:
    """The images of a request. Raises HTTPException: 400, 413, 415 or 503."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    chunks = _chunks(request, limits.body_bytes, share)
    if kind == b"multipart/form-data":
        return await _read_form(chunks, options.get(b"boundary", b""), limits)
    if kind not in (b"", b"application/octet-stream") and not kind.startswith(b"image/"):
        raise HTTPException(
            415,
            "send images as multipart/form-data (curl -F images=@FILE), or one as image/* or "
            "application/octet-stream",
        )
    content = io.BytesIO()  # which gives its bytes without a copy
    async for chunk in chunks:
        content.write(chunk)
    return [Part(None, content.getvalue())]


async def _chunks(request: Request, limit: int, share: Share) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises HTTPException: 413 or 503."""
    declared = request.headers.get("content-length", "0")
    taken = int(declared) if declared.isdecimal() else 0  # the protocol has refused others
    _refuse_large(taken, limit)
    taken = 0
    async for chunk in request.stream():
        taken += len(chunk)
        _refuse_large(taken, limit)
        share.take(len(chunk))
        yield chunk


def _refuse_large(count: int, limit: int) -> None:
    if count > limit:
        raise HTTPException(413, f"the request is over {limit:,} bytes")


async def _read_form(chunks: AsyncIterator[bytes], boundary: bytes, limits: Limits) -> list[Part]:
    form = _Form(limits.parts)
    try:
        parser = MultipartParser(boundary, form.callbacks())
        async for chunk in chunks:
            parser.write(chunk)
        parser.finalize()
    except FormParserError as error:
        raise HTTPException(400, "the multipart form is damaged") from error
    if not form.is_whole:
        raise HTTPException(400, "the multipart form is cut off, or has no parts")
    return form.parts


class _Form:
    """Gathers the parts of a form while it is parsed."""

    def __init__(self, most: int) -> None:
        self.parts: list[Part] = []
        self.is_whole = False
        self._most = most
        self._header = self._value = b""
        self._disposition = b""
        self._content = io.BytesIO()

    def callbacks(self) -> "MultipartCallbacks":
        """What the parser calls."""
        return {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def _part_begin(self) -> None:
        if len(self.parts) == self._most:
            raise HTTPException(413, f"more than {self._most} images in a request")
        self._disposition = b""
        self._content = io.BytesIO()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        if options.get(b"name") != FIELD.encode():
            raise HTTPException(400, f"each part of the form must be an image named {FIELD}")
        name = options.get(b"filename")
        self.parts.append(Part(None if name is None else name.decode("utf-8", "replace"), b""))

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self._content.write(memoryview(data)[start:end])

    def _part_end(self) -> None:
        self.parts[-1].content = self._content.getvalue()

    def _end(self) -> None:
        self.is_whole = bool(self.parts)
