"""Who may use the server: its settings for access and limits, and the checks of every request."""

import hmac
import ipaddress
import json
import os
import re
import stat
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from onsight.errors import ConfigError

TOKEN_VARIABLE = "ONSIGHT_TOKEN"
_MIN_TOKEN_LENGTH = 16
_MAX_TOKEN_FILE_BYTES = 4096

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:@/\s]+)(?::\d{1,5})?", re.ASCII)
_ORIGIN = re.compile(r"(https?)://(.+)")
# Values of --allow-host and --cors.
_HOST_NAME = re.compile(r"[^][*:/@\s]+")
_PAGE_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^A-Z/*?#@\s]+")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_PUBLIC_PATHS = ("/", "/docs", "/health", "/ready")  # pages ask for the token; monitors have none


@dataclass(frozen=True)
class Limits:
    """What one client, or all clients together, may use; counted while requests arrive."""

    body_bytes: int = 32 * 2**20  # size of one request body
    held_bytes: int = 256 * 2**20  # total size of all request bodies in memory
    head_bytes: int = 64 * 2**10  # size of a request line and its headers
    parts: int = 64  # images in one request
    queued: int = 256  # images of one model that are waiting or being processed
    connections: int = 1000
    receive_seconds: float = 10.0  # time for a request to arrive, or its response to be read
    idle_seconds: float = 5.0  # time after which an unused connection is closed
    stop_seconds: float = 8.0  # time for accepted requests to finish when the server stops


@dataclass(frozen=True)
class Access:
    """Where the server listens and which requests it accepts."""

    host: str = "127.0.0.1"
    port: int = 8000
    hosts: tuple[str, ...] = ()  # host names besides those of this machine
    origins: tuple[str, ...] = ()  # origins of other web pages that may send requests
    token: str = field(default="", repr=False)  # empty: none is required
    open: bool = False  # accept requests from the network without a token

    def check(self) -> None:
        """Raise ConfigError for a server that the network could reach without a token.

        Also for host names and origins that no request can have, because all would be rejected.
        """
        for name in self.hosts:
            if not (_HOST_NAME.fullmatch(name) or _is_address(name)):
                raise ConfigError(
                    f"--allow-host {name}: write one host name without a port, such as "
                    "birds.example.org; there are no patterns"
                )
        for origin in self.origins:
            if not _PAGE_ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--cors {origin}: write one origin as a browser sends it, such as "
                    "https://example.org; there are no patterns"
                )
        if not (self.is_local or self.token or self.open):
            raise ConfigError(
                f"--host {self.host} lets the network in: require a token with --token-file FILE "
                f"(or the variable {TOKEN_VARIABLE}), or allow everybody with --open"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host == "localhost" or _is_loopback(self.host)

    def accepts_host(self, name: str) -> bool:
        """Return whether a Host header may have this name, in lower case and without the port.

        This stops DNS rebinding, where a web page points its host name at this machine. Such a
        page cannot send an IP address as its host, so any address is accepted if the server
        accepts requests from the network.
        """
        names = ("localhost", self.host.lower(), *(host.lower() for host in self.hosts))
        return name in names or _is_loopback(name) or (not self.is_local and _is_address(name))


def read_token(file: Path | None) -> str:
    """Read the token from a file or else the environment; empty if there is none.

    Raises ConfigError if the file cannot be read or the token is too short.
    """
    source, token = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE)
    if file is not None:
        source = f"--token-file {file}"
        token = _read_first_line(file)
    if token is None:
        return ""
    if len(token) < _MIN_TOKEN_LENGTH or not (token.isascii() and token.isprintable()):
        raise ConfigError(
            f"the token in {source} must have at least {_MIN_TOKEN_LENGTH} characters, all ASCII; "
            "to make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token


class HostCheck:
    """Middleware that rejects unknown host names and requests from other web pages."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 400 or 403, or pass the request on."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        match = _HOST.fullmatch(host)
        if not match:
            response = error_response(400, "exactly one valid Host header is required")
        elif not self._access.accepts_host(match[1].strip("[]")):
            response = error_response(403, "unknown host name: see --allow-host")
        elif not all(self._accepts_origin(origin, host) for origin in origins):
            response = error_response(403, "requests from other web pages are rejected: see --cors")
        else:
            return await self._app(scope, receive, send)
        return await response(scope, receive, send)

    def _accepts_origin(self, origin: str, host: str) -> bool:
        """Return whether an origin is this server's or one of those in the settings."""
        if origin in self._access.origins:
            return True
        match = _ORIGIN.fullmatch(origin.lower())
        if not match:
            return False
        port = _DEFAULT_PORTS[match[1]]
        return match[2].removesuffix(port) == host.removesuffix(port)


class TokenCheck:
    """Middleware that rejects requests without the token, except for the page and health checks."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._digest = sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or pass the request on."""
        if scope["type"] != "http" or _is_public(scope["path"]) or self._has_token(scope):
            return await self._app(scope, receive, send)
        response = error_response(401, "a token is required: Authorization: Bearer TOKEN")
        response.headers["WWW-Authenticate"] = "Bearer"
        return await response(scope, receive, send)

    def _has_token(self, scope: Scope) -> bool:
        header = Headers(scope=scope).get("authorization", "").encode("latin-1")
        scheme, _, token = header.partition(b" ")
        # Comparing digests takes the same time for every wrong token.
        is_right = hmac.compare_digest(sha256(token.strip()).digest(), self._digest)
        return is_right and scheme.lower() == b"bearer"


class AsciiJson(JSONResponse):
    """A JSON response that may contain names of classes that are not UTF-8."""

    def render(self, content: object) -> bytes:
        """Return JSON with all other characters escaped."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def error_response(status: int, reason: str) -> AsciiJson:
    """Return an error as JSON, in the form of all errors of the server."""
    return AsciiJson({"error": reason}, status)


def _is_public(path: str) -> bool:
    return path in _PUBLIC_PATHS or path.startswith("/static/")


def _read_first_line(file: Path) -> str:
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise ConfigError(f"--token-file {file} is not a file")
        with open(file, encoding="utf-8") as lines:
            return lines.readline(_MAX_TOKEN_FILE_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {file} cannot be read: {error}") from error


def _is_loopback(name: str) -> bool:
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
