"""Calls to a server, made again after growing pauses when their failure may pass."""

import errno
import http.client
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from onsight.errors import RemoteFailed

TRIES = 7
FIRST_PAUSE_SECONDS = 0.5  # doubled after each try: 0.5, 1, 2, 4, 8, 16
PATIENCE_SECONDS = 5.0  # after which a failure is told: what nobody tells of looks like a hang

# What asking again does not change: 404, 403, 400, 405, 501 in the words of fsspec's filesystems.
_FINAL = (
    FileNotFoundError,
    PermissionError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
)
_FINAL_NUMBERS = {errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ENAMETOOLONG}
_PASSING_STATUS = {408, 429}  # besides 500 and above
# Classes of what fails on the way, by the module that defines them; only loaded ones are compared.
_TRANSPORT = {
    "aiohttp": ("ClientError",),
    "botocore.exceptions": ("HTTPClientError", "ConnectionError", "IncompleteReadError"),
    "botocore.parsers": ("ResponseParserError",),
    "requests.exceptions": ("RequestException",),
}

_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)


def retried(call: Callable[[], _Result], what: str) -> _Result:
    """The result of a call, repeated while its failure may pass.

    what: the address, for the message. Raises RemoteFailed after the last try; a failure that
    does not pass (a 4xx answer but 408 and 429) is raised at once, as it is.
    """
    begun, is_told = time.monotonic(), False
    for number in range(TRIES):
        try:
            return call()
        except Exception as error:
            if not may_pass(error):
                raise
            if number == TRIES - 1:
                raise RemoteFailed(
                    f"{what} cannot be read: {TRIES} tries failed, the last with "
                    f"{type(error).__name__}: {error}. What was read so far is kept: repeat the "
                    "command, a training with --resume, once the server answers"
                ) from error
            if not is_told and time.monotonic() - begun > PATIENCE_SECONDS:
                is_told = True
                _logger.warning(
                    "%s: try %d of %d failed (%s: %s); trying again",
                    *(what, number + 1, TRIES, type(error).__name__, error),
                )
        # Jitter: many readers that failed together do not come back together.
        time.sleep(FIRST_PAUSE_SECONDS * 2**number * random.uniform(0.5, 1.0))
    raise AssertionError("unreachable")


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later: no answer, half of one, 408, 429, 500 or more."""
    for one in _chain(error):
        status = _status(one)
        if status is not None:
            return status >= 500 or status in _PASSING_STATUS
    if isinstance(error, _FINAL):
        return False
    if isinstance(error, OSError):  # TimeoutError and ConnectionError are among these
        return error.errno not in _FINAL_NUMBERS
    return isinstance(error, (http.client.HTTPException, *_transport_errors()))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error carries: aiohttp's, gcsfs's or botocore's."""
    # aiohttp's parser has codes of its own, 400 for half an answer.
    name = "code" if type(error).__module__.startswith("gcsfs") else "status"
    value = getattr(error, name, None)
    if isinstance(value, int) and value >= 100:
        return value
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return int(status) if status else None
    return None


def _transport_errors() -> tuple[type[BaseException], ...]:
    return tuple(
        getattr(sys.modules[module], name)
        for module, names in _TRANSPORT.items()
        if module in sys.modules
        for name in names
        if hasattr(sys.modules[module], name)
    )
