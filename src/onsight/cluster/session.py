"""Connect to a Ray cluster, or start one on this machine, and divide its CPUs and GPUs."""

import logging
import os
import re
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from onsight.errors import ConfigError
from onsight.installation import explain_missing
from onsight.text import plural
from onsight_explain.threads import usable_cores

AUTO = "auto"
HEAD = {"node:__internal_head__": 0.001}  # a resource that only the head of a cluster has

_CLIENT = "ray://"
_ADDRESS = re.compile(rf"({_CLIENT})?[^\s/]+:\d+")
_CONNECT_SECONDS = 10.0

# Ray reports usage statistics unless they are disabled. Its lines about a lost machine would
# go to stdout, which is for results; our messages report the loss.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "^"}
# Ray listens on every interface unless this variable declares clusters unsupported. A token in
# the environment is not written to a file.
_OWN_CLUSTER = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}

Node = Mapping[str, float]


@contextmanager
def ray_cluster(address: str, library: str = "ray", *, show_logs: bool = False) -> Iterator[Any]:
    """Yield the module ray, connected to a cluster while the block runs.

    Args:
        address: The address of the cluster. `auto` is the cluster that RAY_ADDRESS names, else the
            one that `ray start --head` started on this machine, else a new one that listens on
            loopback only and ends with the block.
        library: The part of Ray that the caller needs, such as ray.train.
        show_logs: Whether to print the output of processes on the cluster.

    Raises:
        ConfigError: Ray is not installed, or there is no such cluster.
    """
    existing = _find_existing_cluster() if address == AUTO else address
    if existing:
        _check_answers(existing)
    os.environ |= _QUIET
    if not existing:
        os.environ |= _OWN_CLUSTER | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    ray = _import_ray(library)
    if ray.is_initialized():  # the calling script or notebook has connected
        yield ray
        return
    resources: dict[str, Any] = {"num_cpus": usable_cores(), "include_dashboard": False}
    try:
        ray.init(
            address=existing or "local",
            log_to_driver=show_logs,
            logging_level=logging.ERROR,
            **({} if existing else resources),
        )
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise ConfigError(f"the Ray cluster at {existing or 'this machine'}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


class Allocation(NamedTuple):
    """The number of processes to start on a cluster, and the resources of each."""

    processes: int
    cpus: int  # per process
    gpus: int = 0  # per process

    @property
    def resources(self) -> dict[str, float]:
        """The resources of each process, in Ray's notation."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}


def list_live_nodes(ray: Any) -> list[Node]:
    """Return the resources of each live machine of the cluster."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def allocate(nodes: Sequence[Node], processes: int, device: str) -> Allocation:
    """Return the largest equal allocation for a number of processes.

    Each process has a separate GPU if the cluster has any, unless the device is cpu.

    Args:
        nodes: The resources of each machine.
        processes: The number of processes; 0 for one per GPU or, if there is none, per machine.
        device: The kind of device.

    Raises:
        ConfigError: They do not all fit.
    """
    gpus = int(sum(node.get("GPU", 0) for node in nodes)) if device != "cpu" else 0
    if gpus == 0 and device not in ("auto", "cpu"):
        raise ConfigError(f"--device {device}: the Ray cluster has no GPU; remove --device")
    wanted = processes or gpus or len([node for node in nodes if node.get("CPU", 0) >= 1])
    max_cpus = int(max((node.get("CPU", 0) for node in nodes), default=0))
    for cpus in range(max_cpus, 0, -1):
        if wanted and _count_fitting(nodes, cpus, bool(gpus)) >= wanted:
            return Allocation(wanted, cpus, int(bool(gpus)))
    cpu_total = int(sum(node.get("CPU", 0) for node in nodes))
    kind, available = ("GPU", gpus) if gpus else ("CPU", cpu_total)
    fitting = _count_fitting(nodes, 1, bool(gpus))
    fewer = f"give --ranks {fitting} or" if fitting else "let"
    without_gpu = ", or --device cpu" if gpus else ""
    raise ConfigError(
        f"{plural(wanted, 'rank')} need a {kind} each, but the Ray cluster has {available} on "
        f"{plural(len(nodes), 'machine')}: {fewer} more machines join it (ray start --address "
        f"HOST:PORT){without_gpu}"
    )


def _count_fitting(nodes: Sequence[Node], cpus: int, with_gpu: bool) -> int:
    """Return how many processes with this many CPUs each fit on the machines."""
    return sum(
        int(min(node.get("CPU", 0) // cpus, node.get("GPU", 0) if with_gpu else node.get("CPU", 0)))
        for node in nodes
    )


def _find_existing_cluster() -> str:
    """Return the address of the cluster that `auto` connects to; empty if there is none."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address and address != AUTO:
        return address
    # Ray's search cannot be used: importing ray reads the variables that we set for a new
    # cluster. A file that another user wrote in the shared folder is not trusted.
    folder = os.environ.get("TMPDIR", "/tmp") if sys.platform == "linux" else "/tmp"
    file = Path(os.environ.get("RAY_TMPDIR", folder)) / "ray" / "ray_current_cluster"
    try:
        if hasattr(os, "getuid") and file.stat().st_uid not in (0, os.getuid()):
            return ""
        address = file.read_text(encoding="utf-8").strip()
        _check_answers(address)
    except (OSError, ConfigError):  # there is none, or it has ended without removing the file
        return ""
    return address


def _import_ray(library: str) -> Any:
    try:  # to import it: a part of Ray can be there without the packages that the part needs
        import ray

        import_module(library)
    except ImportError as error:
        everywhere = f", here and on every machine of the cluster ({error})"
        raise ConfigError(explain_missing("Ray", "cluster", "--cluster", everywhere)) from error
    return ray


def _check_answers(address: str) -> None:
    """Raise ConfigError unless something listens at the address; Ray would try for a minute."""
    if not _ADDRESS.fullmatch(address):
        raise ConfigError(
            f"--cluster {address} is not an address: give auto, ray://HOST:PORT or HOST:PORT"
        )
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({error}). Start one with `ray start --head`, "
            "which prints its address, or let --cluster auto start one on this machine"
        ) from error
