"""The command `onsight serve`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from onsight.commands.options import ModelOptions
from onsight.errors import ConfigError
from onsight.installation import require

_ACCESS = Group("Access", sort_key=1)
_LIMITS = Group("Limits", sort_key=2)


@Parameter(name="*", group=_ACCESS)
@dataclass(frozen=True)
class _AccessOptions:
    """Which requests are answered."""

    host: Annotated[
        str,
        Parameter(
            help="Address to listen on; 0.0.0.0 accepts requests from the network, and requires a "
            "token or --open."
        ),
    ] = "127.0.0.1"
    token_file: Annotated[
        Path | None,
        Parameter(
            help="File with a token of at least 16 characters that requests must contain. "
            "Default: the environment variable ONSIGHT_TOKEN, if set."
        ),
    ] = None
    open_: Annotated[
        bool,
        Parameter(
            name="--open",
            negative="",
            help="Accept requests from the network without a token.",
        ),
    ] = False
    allow_host: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            help="Another host name of this server, such as that of a proxy in front of it.",
        ),
    ] = ()
    cors: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            help="Origin of web pages that may send requests, such as https://example.org.",
        ),
    ] = ()


def serve(
    *models: Annotated[
        Path,
        Parameter(
            help="Run folders, model files, exported .onnx files, or a folder of several of these."
        ),
    ],
    port: Annotated[int, Parameter(help="Port to listen on; 0 for any free one.")] = 8000,
    access: _AccessOptions = _AccessOptions(),  # frozen
    max_body_mib: Annotated[
        int, Parameter(group=_LIMITS, help="Maximum size of a request in MiB.")
    ] = 32,
    queue: Annotated[
        int,
        Parameter(
            group=_LIMITS,
            help="Maximum number of images waiting for a model; further requests get status 503.",
        ),
    ] = 256,
    options: ModelOptions = ModelOptions(),  # noqa: B008  # frozen
) -> None:
    """Serve predictions over HTTP, with a page to drop images on.

    Try `onsight serve runs/birds`, then open the address that it prints, or send an image:
    `curl -F images=@bird.jpg http://127.0.0.1:8000/predict`.

    Only requests from this machine are accepted unless --host is given. GET /openapi.json describes
    every URL, /metrics has counters for Prometheus, and /ready reports whether all models work. A
    model file that changes is reloaded without losing requests. On Ctrl-C or SIGTERM, the server
    finishes pending requests, then exits.
    """
    for module in ("httptools", "prometheus_client", "python_multipart", "starlette", "uvicorn"):
        require(module, "serve", "serving")
    from onsight.serve.access import Access, Limits, read_token
    from onsight.serve.server import serve as run

    if not models:
        raise ConfigError("no model to serve: name one, such as runs/NAME")
    if max_body_mib < 1 or queue < 1:
        raise ConfigError("--max-body-mib and --queue must be at least 1")
    body_bytes = max_body_mib * 2**20
    held_bytes = max(8 * body_bytes, Limits.held_bytes)
    token = read_token(access.token_file)
    allowed = Access(access.host, port, access.allow_host, access.cors, token, access.open_)
    limits = Limits(body_bytes=body_bytes, held_bytes=held_bytes, queued=queue)
    run(models, allowed, limits, **vars(options))
