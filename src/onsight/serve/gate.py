"""Who is let in: the names this server goes by, pages of its own, and who knows the token."""

import hmac
import re
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from onsight.serve.settings import Access

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:@/\s]+)(?::\d{1,5})?", re.ASCII)
_ORIGIN = re.compile(r"(https?)://(.+)")
_PORTS = {"http": ":80", "https": ":443"}
_FREE = ("/", "/health", "/ready")  # the page asks for the token; a monitor has none


class Gate:
    """Refuses requests that name another host, or that a foreign web page has made."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 400 or 403, or pass on."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        name = _HOST.fullmatch(host)
        if not name:
            return await refuse(400, "one Host header is needed")(scope, receive, send)
        if not self._access.answers_to(name[1].strip("[]")):
            message = "this server does not go by that name: see --allow-host"
            return await refuse(403, message)(scope, receive, send)
        if not all(self._is_own(origin, host) for origin in origins):
            message = "requests of foreign web pages are refused: see --cors"
            return await refuse(403, message)(scope, receive, send)
        return await self._app(scope, receive, send)

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may ask: one from here, or one that was allowed."""
        if origin in self._access.origins:
            return True
        parts = _ORIGIN.fullmatch(origin.lower())
        if not parts:
            return False
        port = _PORTS[parts[1]]
        return parts[2].removesuffix(port) == host.removesuffix(port)


class TokenCheck:
    """Refuses requests without the token, except for the page itself and whether the server is up.

    Digests are compared, in a time that does not depend on them.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._digest = sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or pass on."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        path = scope["path"]
        given = Headers(scope=scope).get("authorization", "").encode("latin-1")
        scheme, _, token = given.partition(b" ")
        known = hmac.compare_digest(sha256(token.strip()).digest(), self._digest)
        if path in _FREE or path.startswith("/static/") or (known and scheme.lower() == b"bearer"):
            return await self._app(scope, receive, send)
        response = refuse(401, "a token is needed: Authorization: Bearer TOKEN")
        response.headers["WWW-Authenticate"] = "Bearer"
        return await response(scope, receive, send)


def refuse(status: int, reason: str) -> JSONResponse:
    """A refusal as every other one of this server."""
    return JSONResponse({"error": reason}, status)
