"""`onsight serve`: listens, loads the models, answers until it is told to stop."""

import asyncio
import errno
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from onsight.errors import ConfigError
from onsight.inference.predictor import load
from onsight.serve.app import make_app
from onsight.serve.logs import JsonLines, log
from onsight.serve.metrics import Metrics
from onsight.serve.protocol import BoundedProtocol
from onsight.serve.settings import Access, Limits
from onsight.serve.shelf import Load, Shelf
from onsight.serve.yielding import yield_to_clients
from onsight_explain.cores import usable_cores

_LAME_SECONDS = 0.5  # in which new requests are still told that the server stops
_BACKLOG = 1024  # connections that wait to be taken
_LAST_PORT = 65535
_SPARE_FILES = 256  # beside one for each connection


class Server(uvicorn.Server):
    """uvicorn's server, which before it closes anything answers what it has accepted."""

    is_stopping = False
    greeting = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so on stdout."""
        await super().startup(sockets)
        print(self.greeting, flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Refuse new requests from now on."""
        self.is_stopping = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the accepted requests, telling new ones to go elsewhere; then end."""
        self.is_stopping = True
        log("stopping", requests=len(self.server_state.tasks))
        await asyncio.sleep(_LAME_SECONDS)
        await super().shutdown(sockets)


def serve(
    models: Sequence[Path], access: Access, limits: Limits, *, device: str, module: str | None
) -> None:
    """Serve models until a signal ends it. Raises ConfigError, ModelError, DeviceError."""
    access.check()
    if module and len(models) > 1:
        raise ConfigError("--module is the network of one model: name one MODEL with it")
    with listen(access) as listener:
        run(listener, models, partial(load, device=device, module=module), access, limits)


def run(
    listener: socket.socket, models: Sequence[Path], load: Load, access: Access, limits: Limits
) -> None:
    """Load models and answer on a socket, in the main thread, until a signal ends it."""
    for number in (signal.SIGTERM, signal.SIGINT):  # while loading, and when uvicorn passes it on
        signal.signal(number, _end)
    metrics = Metrics()
    decoders = ThreadPoolExecutor(usable_cores(), "decode", yield_to_clients)
    shelf = Shelf(models, load, decoders, limits.queued, metrics)
    shelf.open()
    server = make_server(shelf, access, limits, metrics)
    address = url(listener)
    log("serving", url=address, models=shelf.devices(), limits=vars(limits))
    server.greeting = f"serving {', '.join(shelf.names)} on {address} (Ctrl-C stops)"
    server.run([listener])


def make_server(shelf: Shelf, access: Access, limits: Limits, metrics: Metrics) -> Server:
    """A server that is ready to run."""
    for name in ("uvicorn", "python_multipart"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [JsonLines()], False
        logger.setLevel(logging.ERROR)  # below that are the faults of clients
    _allow_files(limits.connections + _SPARE_FILES)

    def refused(status: int) -> None:
        metrics.refused(status)
        log("refused", status=status)

    app = make_app(shelf, access, limits, metrics, lambda: server.is_stopping)
    config = uvicorn.Config(
        app,
        http=partial(BoundedProtocol, limits=limits, refused=refused),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=limits.idle_seconds,  # type: ignore[arg-type]
        timeout_graceful_shutdown=limits.stop_seconds,  # type: ignore[arg-type]
    )
    server = Server(config)
    return server


def listen(access: Access) -> socket.socket:
    """A socket bound to where the server is to listen. Raises ConfigError if it cannot be."""
    place = f"{access.host}:{access.port}"
    try:
        if not 0 <= access.port <= _LAST_PORT:
            raise OSError(f"ports go from 0 to {_LAST_PORT}")
        found = socket.getaddrinfo(access.host, access.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {place}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {access.port} of {access.host} is in use: choose another with --port, or "
                "--port 0 for any that is free"
            ) from error
        raise ConfigError(f"cannot listen on {place}: {error}") from error
    return listener


def url(listener: socket.socket) -> str:
    """Where a socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _allow_files(count: int) -> None:
    """Raise the number of files this process may open, as far as the system lets it."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
