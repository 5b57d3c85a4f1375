"""Repeat calls to a server, after growing pauses, while their failure may be temporary."""

import errno
import http.client
import logging
import random
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from onsight.errors import RemoteFailed

TRIES = 7
FIRST_PAUSE_SECONDS = 0.5  # doubles after each try: 0.5, 1, 2, 4, 8, 16
QUIET_SECONDS = 5.0  # unlogged waiting time; a longer silence resembles a hang

# 404, 403, 400, 405 and 501 as fsspec's filesystems raise them: trying again changes nothing.
_PERMANENT = (
    FileNotFoundError,
    PermissionError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
)
_PERMANENT_ERRNOS = {errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ENAMETOOLONG}
_TRANSIENT_STATUSES = {408, 429}  # HTTP statuses; 500 and above are transient too
# Transport errors, by the module that defines them; only loaded modules are compared.
_TRANSPORT_ERRORS = {
    "aiohttp": ("ClientError",),
    "botocore.exceptions": ("HTTPClientError", "ConnectionError", "IncompleteReadError"),
    "botocore.parsers": ("ResponseParserError",),
    "requests.exceptions": ("RequestException",),
}

_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)


def call_with_retries(call: Callable[[], _Result], what: str) -> _Result:
    """Return the result of a call, repeated while its failure may be temporary.

    what: the address, for the message. Raises RemoteFailed after the last try; a permanent
    failure (any 4xx status except 408 and 429) is raised at once, as it is.
    """
    start, is_logged = time.monotonic(), False
    for attempt in range(TRIES):
        try:
            return call()
        except Exception as error:
            if not is_transient(error):
                raise
            if attempt == TRIES - 1:
                raise RemoteFailed(
                    f"{what} cannot be read: {TRIES} tries failed, the last with "
                    f"{type(error).__name__}: {error}. What was read so far is kept: repeat the "
                    "command, or a training run with --resume, once the server responds"
                ) from error
            if not is_logged and time.monotonic() - start > QUIET_SECONDS:
                is_logged = True
                _logger.warning(
                    "%s: try %d of %d failed (%s: %s); trying again",
                    *(what, attempt + 1, TRIES, type(error).__name__, error),
                )
        # Jitter: many readers that failed together do not come back together.
        time.sleep(FIRST_PAUSE_SECONDS * 2**attempt * random.uniform(0.5, 1.0))
    raise AssertionError("unreachable")


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later.

    It may succeed after no or half a response, and after status 408, 429, and 500 and up.
    """
    cause: BaseException | None = error
    while cause is not None:
        status = _http_status(cause)
        if status is not None:
            return status >= 500 or status in _TRANSIENT_STATUSES
        cause = cause.__cause__
    if isinstance(error, _PERMANENT):  # so fsspec calls any failed request for a file's size
        return error.__cause__ is not None and is_transient(error.__cause__)
    if isinstance(error, OSError):  # TimeoutError and ConnectionError are among these
        return error.errno not in _PERMANENT_ERRNOS
    return isinstance(error, (http.client.HTTPException, *_loaded_transport_errors()))


def _http_status(error: BaseException) -> int | None:
    """Return the HTTP status in an error of aiohttp, gcsfs or botocore."""
    # aiohttp's parser has additional codes, such as 400 for half a response.
    name = "code" if type(error).__module__.startswith("gcsfs") else "status"
    value = getattr(error, name, None)
    if isinstance(value, int) and value >= 100:
        return value
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return int(status) if status else None
    return None


def _loaded_transport_errors() -> tuple[type[BaseException], ...]:
    return tuple(
        getattr(sys.modules[module], name)
        for module, names in _TRANSPORT_ERRORS.items()
        if module in sys.modules
        for name in names
        if hasattr(sys.modules[module], name)
    )
