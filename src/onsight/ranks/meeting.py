"""Which rank this process is, from its launcher's environment variables, and where ranks meet."""

import os
import re
import socket
import struct
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from onsight.errors import OnsightError
from onsight.ranks.watchdog import STORE_ENV

LOOPBACK = "127.0.0.1"
_FIRST_PORT, _PORTS = 20_000, 20_000  # Slurm sets no port, so it is derived from the job's number


class RankInfo(NamedTuple):
    """`rank` of `size` processes; `local_rank` of `local_size` on machine number `node`."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    launcher: str


def rank_from_env(variables: Mapping[str, str] = os.environ) -> RankInfo | None:
    """Return the rank that torchrun or Slurm's srun gave this process, or None if it runs alone."""
    if "RANK" in variables and "WORLD_SIZE" in variables:
        info = _rank_from_torchrun(variables)
    elif "SLURM_STEP_NUM_TASKS" in variables:  # set by srun, not in a batch script or by salloc
        info = _rank_from_slurm(variables)
    else:
        return None
    return info if info.size > 1 else None


def slurm_address(variables: Mapping[str, str]) -> tuple[str, int]:
    """Return the host and port where the ranks of a Slurm step meet."""
    host = variables.get("MASTER_ADDR") or _first_host(variables["SLURM_STEP_NODELIST"])
    job = int(variables.get("SLURM_JOB_ID", 0)) + int(variables.get("SLURM_STEP_ID", 0))
    return host, int(variables.get("MASTER_PORT") or _FIRST_PORT + job % _PORTS)


def _rank_from_torchrun(variables: Mapping[str, str]) -> RankInfo:
    rank, size = int(variables["RANK"]), int(variables["WORLD_SIZE"])
    local_rank = int(variables.get("LOCAL_RANK", rank))
    local_size = int(variables.get("LOCAL_WORLD_SIZE", size))
    node = int(variables.get("GROUP_RANK", rank // local_size))
    return RankInfo(rank, size, local_rank, local_size, node, "torchrun")


def _rank_from_slurm(variables: Mapping[str, str]) -> RankInfo:
    node = int(variables.get("SLURM_NODEID", 0))
    return RankInfo(
        int(variables["SLURM_PROCID"]),
        int(variables["SLURM_STEP_NUM_TASKS"]),
        int(variables["SLURM_LOCALID"]),
        _tasks_per_node(variables["SLURM_STEP_TASKS_PER_NODE"])[node],
        node,
        "Slurm",
    )


def _tasks_per_node(text: str) -> list[int]:
    """Parse Slurm's run-length notation: 4(x2),3 means 4, 4 and 3."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in found for _ in range(int(times or 1))]


def _first_host(nodes: str) -> str:
    """Return the first host of Slurm's node list, such as gpu03 of gpu[03-07,12],cpu1."""
    found = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes


JOIN_TIMEOUT = timedelta(minutes=5)  # the machines of a cluster do not start all at once

_POLL_SECONDS = 0.1
_BROADCAST_TIMEOUT = timedelta(hours=1)  # the first rank may have to fetch checkpoints


def meet(rank_info: RankInfo) -> dist.Store:
    """Connect to the store where the ranks meet; nothing of an earlier job is in it.

    torchrun keeps one store when it restarts the ranks, so each start uses its own part of it.

    Raises:
        OnsightError: If there is no connection.
    """
    if STORE_ENV in os.environ:
        host, _, port = os.environ[STORE_ENV].rpartition(":")
        return dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    if rank_info.launcher == "Slurm":
        host, number = slurm_address(os.environ)
        os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(number)}
    try:
        store, _, _ = next(
            dist.rendezvous("env://", rank_info.rank, rank_info.size, timeout=JOIN_TIMEOUT)
        )
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return _fresh_part(store, rank_info)
    except (RuntimeError, ValueError) as error:
        raise OnsightError(f"the ranks cannot connect: {error}") from error
    met: dist.Store = store
    return met


def host_store(host: str) -> tuple[dist.Store, str]:
    """Host a store for the ranks at an address of this machine; return it and its host:port."""
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, f"{host}:{port}"


def store_variables(address: str) -> dict[str, str]:
    """Return the environment of a store's ranks: its address, and loopback only if it is there."""
    variables = {STORE_ENV: address}
    if address.startswith(f"{LOOPBACK}:"):
        interface = "lo0" if sys.platform == "darwin" else "lo"
        variables |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return variables


def broadcast(
    store: dist.Store,
    rank_info: RankInfo,
    key: str,
    make: Callable[[], str],
    timeout: timedelta = _BROADCAST_TIMEOUT,
) -> str:
    """Return what `make` returns on the first rank; the others wait for it."""
    if rank_info.rank == 0:
        store.set(key, make())
    store.wait([key], timeout)
    value: str = store.get(key).decode()
    return value


def _fresh_part(store: dist.Store, rank_info: RankInfo) -> dist.Store:
    """Return a part of the store for this start of the ranks, whatever earlier ones left in it.

    Each rank writes a unique name. The first rank tells every name it reads which part to use,
    until all ranks are in that part.
    """
    name = uuid.uuid4().hex
    store.set(f"onsight/name/{rank_info.rank}", name)
    if rank_info.rank > 0:
        store.wait([f"onsight/part/{name}"], JOIN_TIMEOUT)
        part = dist.PrefixStore(store.get(f"onsight/part/{name}").decode(), store)
        part.set(f"met/{rank_info.rank}", "1")
        return part
    part = dist.PrefixStore(f"onsight/{name}", store)
    others = range(1, rank_info.size)
    end = time.monotonic() + JOIN_TIMEOUT.total_seconds()
    while not part.check([f"met/{rank}" for rank in others]):
        for rank in others:
            with suppress(RuntimeError):
                if store.check([f"onsight/name/{rank}"]):
                    other_name = store.get(f"onsight/name/{rank}").decode()
                    store.set(f"onsight/part/{other_name}", f"onsight/{name}")
        if time.monotonic() > end:
            break  # `Ranks` then names the missing ranks
        time.sleep(_POLL_SECONDS)
    return part


_SIOCGIFADDR = 0x8915  # Linux's request for an interface's address


def interface_towards(host: str) -> str | None:
    """Return the network interface that leads to a host, or None if it is unknown or loopback.

    Without it, gloo listens at the machine's own name, which many systems map to 127.0.0.1 or
    127.0.1.1 in /etc/hosts, where other machines cannot connect.
    """
    try:
        import fcntl  # not on Windows
    except ImportError:
        return None
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # for UDP, this only looks up the route and sends nothing
        address = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                request = struct.pack("256s", name.encode()[:15])
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(reply[20:24]) == address:
                    return None if address.startswith("127.") else name
    return None
