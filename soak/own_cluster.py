"""A small private Ray cluster, on loopback and with its own token."""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray then stays on loopback
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # Ray reads it once per process
}
_MEMORY = {"object_store_memory": 200_000_000}


@contextmanager
def own_cluster(
    cpus: int, variables: Mapping[str, str], client_port: int | None = None
) -> Iterator[Any]:
    """Start a ray.cluster_utils.Cluster of one node, with environment variables.

    client_port: the port for ray:// addresses.
    """
    previous = dict(os.environ)
    os.environ |= {**_VARIABLES, **variables}
    from ray.cluster_utils import Cluster

    node = {"num_cpus": cpus, "include_dashboard": False, **_MEMORY}
    node |= {"ray_client_server_port": client_port} if client_port else {}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield cluster
    finally:
        cluster.shutdown()
        os.environ.clear()
        os.environ |= previous


def add_node(cluster: Any) -> Any:
    """Add a node with one CPU, and return it."""
    return cluster.add_node(num_cpus=1, **_MEMORY)
