"""The server as a deployment of Ray Serve, which starts replicas of it and spreads requests.

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
from onsight.serve.access import Access, Limits, read_token
from onsight.serve.app import make_app
from onsight.serve.batcher import yield_to_clients
from onsight.serve.monitoring import ServerMetrics
from onsight.serve.registry import ModelRegistry
from onsight_explain.threads import usable_cores

_CONCURRENT_REQUESTS = 256  # per replica; the limits of `Limits` reject requests earlier


class DeploymentOptions(BaseModel):
    """The options of a deployment, as `serve run ... NAME=VALUE` or as args in a file."""

    model_config = ConfigDict(extra="forbid")

    model: str  # a run folder, model file or folder of several, at the same path on all machines
    replicas: int = Field(1, ge=1)
    cpus: float = Field(1, ge=0)
    gpus: float = Field(0, ge=0)
    device: str = "auto"
    member: str = ""  # of a blend, to serve it alone
    host: str = "127.0.0.1"  # where Ray's proxy listens; decides whether a token is required
    allow_host: str = ""
    token_file: str = ""
    open: bool = False


def app(options: DeploymentOptions) -> Application:
    """Return the application for Ray Serve.

    Raises ConfigError if it would be open to everybody on the network.
    """
    make_access(options).check()

    def make() -> ASGIApp:  # Ray recognises a factory only if it is a plain function
        return make_replica(options)

    class Onsight:
        """A replica, in which Ray runs the application that `make` returns."""

    deployment = serve.deployment(
        name="onsight",
        num_replicas=options.replicas,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        max_ongoing_requests=_CONCURRENT_REQUESTS,
    )
    return deployment(serve.ingress(make)(Onsight)).bind()


def make_replica(options: DeploymentOptions) -> ASGIApp:
    """Load the models and return the web application, in a replica's process."""
    metrics, limits = ServerMetrics(), Limits()
    decoders = ThreadPoolExecutor(usable_cores(), "decode", yield_to_clients)
    load_model = partial(load, device=options.device, member=options.member)
    registry = ModelRegistry([Path(options.model)], load_model, decoders, limits.queued, metrics)
    registry.load_all()
    return make_app(registry, make_access(options), limits, metrics)


def make_access(options: DeploymentOptions) -> Access:
    """Return the access settings; each replica reads the token itself. Raises ConfigError."""
    token = read_token(Path(options.token_file) if options.token_file else None)
    hosts = tuple(filter(None, options.allow_host.split(",")))
    return Access(options.host, hosts=hosts, token=token, open=options.open)
