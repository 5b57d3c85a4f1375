"""HTTP requests that end whatever a server answers: bounded in bytes and time, not decompressed.

fsspec reads responses whole, decompresses them, and searches pages for links in quadratic time.
"""

import asyncio
import html
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urljoin

from aiohttp import ClientResponse, ClientTimeout
from fsspec.asyn import sync_wrapper
from fsspec.implementations.http import HTTPFileSystem

from onsight.errors import DataError
from onsight.limits import SHARD_INDEX_BYTES
from onsight.text import data_size

_PIECE_BYTES, _PIECE_SECONDS = 256 << 10, 30  # a connection that is slower counts as lost
_LINK = re.compile(r"""\bhref\s{0,9}=\s{0,9}["']([^"'<>\r\n]{1,2000})["']""", re.IGNORECASE)


def bounded_client(configured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of aiohttp's client, given those in fsspec's configuration."""
    headers = {**configured.get("headers", {}), "Accept-Encoding": "identity"}
    timeout = ClientTimeout(total=None, sock_read=_PIECE_SECONDS)
    return {**configured, "headers": headers, "timeout": timeout, "auto_decompress": False}


class BoundedHttp(HTTPFileSystem):  # type: ignore[misc]  # fsspec declares no types
    """fsspec's filesystem, with requests of our own for content and for pages of links."""

    async def _cat_file(self, url: str, start: int, end: int) -> bytes:
        """Return bytes start to end, also from a server that always sends the whole file."""
        return await self._get(url, start, end - start, {"Range": f"bytes={start}-{end - 1}"})

    async def _ls(self, url: str, detail: bool = True) -> list[dict[str, str]]:
        """Return the files and folders that a page links to."""
        page = await self._get(url, 0, SHARD_INDEX_BYTES + 1, {})
        if len(page) > SHARD_INDEX_BYTES:
            raise DataError(
                f"the page {url} has more than {data_size(SHARD_INDEX_BYTES)}; name the shards, as "
                ".../train-{0000..0099}.tar"
            )
        links = _LINK.findall(page.decode("utf-8", "replace"))
        paths = {urljoin(url.rstrip("/") + "/", html.unescape(link)) for link in links}
        return [
            {"name": path, "type": "directory" if path[-1] == "/" else "file"} for path in paths
        ]

    ls = sync_wrapper(_ls)

    async def _info(self, url: str, **options: Any) -> dict[str, Any]:
        """Return a file's size and version."""
        async with _time_limit():
            info: dict[str, Any] = await super()._info(url, **options)
            return info

    async def _get(self, url: str, start: int, size: int, headers: dict[str, str]) -> bytes:
        """Return `size` bytes of a file from start on, fewer if it ends before."""
        headers = {**self.kwargs.get("headers", {}), **headers}
        options = {**self.kwargs, "headers": headers, "timeout": ClientTimeout(total=None)}
        session = await self.set_session()
        async with (
            _time_limit() as deadline,
            session.get(self.encode_url(url), **options) as response,
        ):
            if response.status == 404:
                raise FileNotFoundError(url)
            response.raise_for_status()
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise DataError(
                    f"{url} is sent compressed although that was not asked for; turn off "
                    "Content-Encoding for it on the server"
                )
            return await _read(response, 0 if response.status == 206 else start, size, deadline)


@asynccontextmanager
async def _time_limit() -> AsyncIterator[asyncio.Timeout]:
    """Raise ConnectionError when a deadline has passed."""
    try:
        async with asyncio.timeout(_PIECE_SECONDS) as deadline:
            yield deadline
    except TimeoutError as error:
        few = f"nothing, or less than {data_size(_PIECE_BYTES)}, came in {_PIECE_SECONDS} s"
        raise ConnectionError(few) from error


async def _read(
    response: ClientResponse, start: int, size: int, deadline: asyncio.Timeout
) -> bytes:
    """Return `size` bytes of a body from start on; each piece that arrives moves the deadline."""
    body, arrived = bytearray(), 0
    while len(body) < size and (chunk := await response.content.read(_PIECE_BYTES)):
        body += chunk[start:]
        start = max(0, start - len(chunk))
        arrived += len(chunk)
        if arrived >= _PIECE_BYTES:
            arrived = 0
            deadline.reschedule(asyncio.get_running_loop().time() + _PIECE_SECONDS)
    return bytes(body[:size])
