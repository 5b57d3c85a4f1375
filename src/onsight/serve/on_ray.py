"""The server's application as a deployment of Ray Serve, which starts and spreads replicas of it.

`serve run onsight.serve.on_ray:app model=/shared/runs/birds` serves a model on a Ray cluster.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application
from starlette.types import ASGIApp

from onsight.inference.predictor import load
from onsight.serve.app import make_app
from onsight.serve.metrics import Metrics
from onsight.serve.settings import Access, Limits, read_token
from onsight.serve.shelf import Shelf
from onsight.serve.yielding import yield_to_clients
from onsight_explain.cores import usable_cores

_ONGOING = 256  # requests that a replica has at once; its own bounds refuse earlier


class Wanted(BaseModel):
    """What can be said of a deployment, as `serve run ... NAME=VALUE` or as args in a file.

    model: a run folder, model file or folder of several, as every machine sees it; host: where
    Ray's proxy listens, which decides as for `onsight serve` whether a token is needed.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    replicas: int = Field(1, ge=1)
    cpus: float = Field(1, ge=0)
    gpus: float = Field(0, ge=0)
    device: str = "auto"
    host: str = "127.0.0.1"
    allow_host: str = ""
    token_file: str = ""
    open: bool = False


def app(wanted: Wanted) -> Application:
    """The application for Ray Serve. Raises ConfigError if it would be open to anybody."""
    make_access(wanted).check()

    def make() -> ASGIApp:  # Ray takes a plain function alone for one that makes the application
        return make_replica(wanted)

    class Onsight:
        """A replica: the models, and the application that asks them."""

    deployment = serve.deployment(
        name="onsight",
        num_replicas=wanted.replicas,
        ray_actor_options={"num_cpus": wanted.cpus, "num_gpus": wanted.gpus},
        max_ongoing_requests=_ONGOING,
    )
    return deployment(serve.ingress(make)(Onsight)).bind()


def make_replica(wanted: Wanted) -> ASGIApp:
    """Load the models and make the application, in a process of Ray's."""
    metrics, limits = Metrics(), Limits()
    decoders = ThreadPoolExecutor(usable_cores(), "decode", yield_to_clients)
    models = [Path(wanted.model)]
    shelf = Shelf(models, partial(load, device=wanted.device), decoders, limits.queued, metrics)
    shelf.open()
    return make_app(shelf, make_access(wanted), limits, metrics)


def make_access(wanted: Wanted) -> Access:
    """Who is answered; the token is read where it is needed, and never sent. Raises ConfigError."""
    token = read_token(Path(wanted.token_file) if wanted.token_file else None)
    hosts = tuple(filter(None, wanted.allow_host.split(",")))
    return Access(wanted.host, hosts=hosts, token=token, open=wanted.open)
