"""What a request asks for: parameters that are checked, and never a path or another URL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.exceptions import HTTPException
from starlette.requests import Request

from onsight.data.pillow_pixels import Pixels
from onsight.errors import ImageError
from onsight.serve.batcher import QueueFull
from onsight.serve.body import Held, busy, read_parts
from onsight.serve.served import Served
from onsight.serve.settings import Limits
from onsight.serve.shelf import Shelf

_MOST = 1000


def asked(request: Request, *names: str) -> dict[str, str]:
    """The parameters of a URL, each at most once. Raises HTTPException (400) for others."""
    given = request.query_params.multi_items()
    found = dict(given)
    unknown = found.keys() - set(names)
    if unknown:
        known = " or ".join(names)
        raise HTTPException(400, f"this URL takes {known}, and no other parameter")
    if len(given) > len(found):
        raise HTTPException(400, "a parameter is given twice")
    return found


def count_of(given: dict[str, str], name: str, default: int) -> int:
    """A parameter that is a number, 1 to 1000. Raises HTTPException (400)."""
    text = given.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= _MOST):
        raise HTTPException(400, f"{name} must be a whole number from 1 to {_MOST:,}")
    return int(text)


def served_for(shelf: Shelf, given: dict[str, str]) -> Served:
    """The model that is asked for, or the first one. Raises HTTPException (404)."""
    served = shelf.get(given.get("model"))
    if served is None:
        raise HTTPException(404, "there is no model of that name: see /models")
    return served


@asynccontextmanager
async def one_image(
    request: Request, served: Served, limits: Limits, held: Held
) -> AsyncIterator[Pixels]:
    """The one image of a request: uint8 (H, W, C). Raises HTTPException: 400 to 503."""
    try:
        with served.batcher.room(1), held.share() as share:
            parts = await read_parts(request, limits, share)
            if len(parts) > 1:
                raise HTTPException(400, "only one image can be asked about at a time")
            yield await served.pixels(parts[0].content)
    except QueueFull as error:
        raise busy() from error
    except ImageError as error:
        raise HTTPException(422, str(error)) from error
