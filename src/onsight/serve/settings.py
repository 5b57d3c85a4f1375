"""What a server is told at its start: where it listens, whom it answers, and its limits."""

import ipaddress
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from onsight.errors import ConfigError

TOKEN_VARIABLE = "ONSIGHT_TOKEN"
_LEAST_TOKEN = 16  # characters
_TOKEN_FILE_BYTES = 4096


@dataclass(frozen=True)
class Limits:
    """What one client, or all together, may take; each is counted while it arrives.

    body_bytes: of a request; held_bytes: of all bodies that are in memory; head_bytes: of a
    request's line and headers; parts: images of a request; queued: images that wait or are in
    work, of a model; receive_seconds: for a request to arrive as a whole, or an answer to be taken;
    idle_seconds: that a connection is kept between requests; stop_seconds: that accepted requests
    have left when the server is to stop.
    """

    body_bytes: int = 32 * 2**20
    held_bytes: int = 256 * 2**20
    head_bytes: int = 64 * 2**10
    parts: int = 64
    queued: int = 256
    connections: int = 1000
    receive_seconds: float = 10.0
    idle_seconds: float = 5.0
    stop_seconds: float = 8.0


@dataclass(frozen=True)
class Access:
    """Who is answered: the names the server goes by, foreign web pages, and the token.

    hosts, origins: beyond those of this machine; token: an empty text for none; open: whether
    anybody on the network may ask without one.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    open: bool = False

    def check(self) -> None:
        """Raise ConfigError if the network could reach a server that asks for no token."""
        if not (self.is_local or self.token or self.open):
            raise ConfigError(
                f"--host {self.host} lets the network in: give --token-file FILE (or the variable "
                f"{TOKEN_VARIABLE}), or say --open if anybody may ask"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host == "localhost" or _is_loopback(self.host)

    def answers_to(self, name: str) -> bool:
        """Whether a Host header may hold this name, in lower case, without its port.

        A web page that has its own name point at this machine is not answered: it cannot say an
        address, which is let through where the network is.
        """
        known = ("localhost", self.host.lower(), *(host.lower() for host in self.hosts))
        return name in known or _is_loopback(name) or (not self.is_local and _is_address(name))


def read_token(file: Path | None) -> str:
    """The token in a file or else the environment, or an empty text. Raises ConfigError."""
    source, token = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE)
    if file is not None:
        source = f"--token-file {file}"
        token = _first_line(file)
    if token is None:
        return ""
    if len(token) < _LEAST_TOKEN or not (token.isascii() and token.isprintable()):
        raise ConfigError(
            f"the token in {source} needs at least {_LEAST_TOKEN} characters, all of them ASCII; "
            "a good one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token


def _first_line(file: Path) -> str:
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise ConfigError(f"--token-file {file} is not a file")
        with open(file, encoding="utf-8") as lines:
            return lines.readline(_TOKEN_FILE_BYTES).strip()
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
