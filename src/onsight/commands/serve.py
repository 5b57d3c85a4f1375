"""The command `onsight serve`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from onsight.commands.options import Device, Module
from onsight.version import installed_as

_WHO = Group("Who may ask", sort_key=1)
_LIMITS = Group("Limits", sort_key=2)


def serve(
    *models: Path,
    port: Annotated[int, Parameter(help="Where to listen; 0: any that is free.")] = 8000,
    device: Device = "auto",
    module: Module = None,
    host: Annotated[
        str,
        Parameter(
            group=_WHO,
            help="The address to listen on: 0.0.0.0 lets the network in, with a token or --open.",
        ),
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        Parameter(
            group=_WHO,
            help="A file with a token of 16 characters or more, which requests must then bring. "
            "Default: the variable ONSIGHT_TOKEN, if it is set.",
        ),
    ] = None,
    open_: Annotated[
        bool,
        Parameter(name="--open", negative="", group=_WHO, help="Anybody on the network may ask."),
    ] = False,
    allow_host: Annotated[
        tuple[str, ...],
        Parameter(
            group=_WHO,
            help="A name that this server goes by, such as that of the proxy before it.",
        ),
    ] = (),
    cors: Annotated[
        tuple[str, ...],
        Parameter(
            group=_WHO,
            help="An origin, such as https://example.org, whose web pages may ask.",
        ),
    ] = (),
    max_body_mib: Annotated[
        int, Parameter(group=_LIMITS, help="The largest request, in MiB of 1,048,576 bytes.")
    ] = 32,
    queue: Annotated[
        int,
        Parameter(
            group=_LIMITS,
            help="How many images may wait for a model; requests beyond are refused with 503.",
        ),
    ] = 256,
) -> None:
    """Answer HTTP requests with predictions, and show a page to drop images on.

    Try `onsight serve runs/birds`, then open the address that it prints, or ask with
    `curl -F images=@bird.jpg http://127.0.0.1:8000/predict`.

    Nothing but this machine is answered unless --host says so. GET /openapi.json describes every
    URL, /metrics counts for Prometheus, /ready says whether all models work. A model whose file
    changes is taken up without losing a request. Ctrl-C or SIGTERM answers what was accepted and
    ends.

    Parameters
    ----------
    models
        Run folders, model files, exported .onnx files, or a folder of several of these.
    """
    from onsight.errors import ConfigError

    try:
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn.protocols.http.httptools_impl  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"serving needs {error.name}: pip install '{installed_as()}[serve]'"
        ) from error
    from onsight_explain.spinning import choose_spinning

    choose_spinning()  # before torch loads
    from onsight.serve.server import serve as run
    from onsight.serve.settings import Access, Limits, read_token

    if not models:
        raise ConfigError("name a MODEL to serve, such as runs/NAME")
    if max_body_mib < 1 or queue < 1:
        raise ConfigError("--max-body-mib and --queue must be at least 1")
    body_bytes = max_body_mib * 2**20
    held_bytes = max(8 * body_bytes, Limits.held_bytes)
    access = Access(host, port, allow_host, cors, read_token(token_file), open_)
    limits = Limits(body_bytes=body_bytes, held_bytes=held_bytes, queued=queue)
    run(models, access, limits, device=device, module=module)
