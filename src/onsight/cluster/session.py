"""The Ray cluster that work is given to: the user's, or one on this machine that ends with it."""

import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onsight.errors import ConfigError
from onsight.version import installed_as
from onsight_explain.cores import usable_cores

AUTO = "auto"
HEAD = {"node:__internal_head__": 0.001}  # a resource that only the first machine of a cluster has

_CLIENT = "ray://"
_ANSWER_SECONDS = 10.0

# Ray counts its users unless it is told not to, and what it starts listens on every interface
# unless it believes that clusters are unsupported here. A token that is given is in no file. Lines
# of Ray's about a lost machine would go to stdout, which is for results; ours name the loss.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "^"}
_OWN = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}


@contextmanager
def ray_cluster(address: str) -> Iterator[Any]:
    """The module ray, connected to a cluster while the block runs.

    address: auto, ray://HOST:PORT or HOST:PORT. auto is the cluster that RAY_ADDRESS names, else a
    new one that listens on loopback alone. Raises ConfigError.
    """
    named = os.environ.get("RAY_ADDRESS", "") if address == AUTO else address
    if named and named != AUTO:
        _refuse_silence(named)
    os.environ |= _QUIET | ({} if named else _OWN | {"RAY_AUTH_TOKEN": secrets.token_hex(32)})
    ray = _import_ray()
    if ray.is_initialized():  # by the script or notebook that calls this
        yield ray
        return
    own: dict[str, Any] = {"num_cpus": usable_cores(), "include_dashboard": False}
    quietly = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(address=named or "local", **({} if named else own), **quietly)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"the Ray cluster at {named or 'this machine'}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
        import ray.data
        import ray.train
    except ImportError as error:
        raise ConfigError(
            f"--cluster needs Ray: pip install '{installed_as()}[cluster]', here and on every "
            f"machine of the cluster ({error})"
        ) from error
    return ray


def _refuse_silence(address: str) -> None:
    """Raise ConfigError unless something answers there; Ray itself would try for a minute."""
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(
            f"--cluster {address} is not an address: give auto, ray://HOST:PORT or HOST:PORT"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({error}). Start one with: ray start --head; "
            "its own words name the address. --cluster auto starts one on this machine"
        ) from error
