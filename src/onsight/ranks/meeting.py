"""Which rank this process is, from the environment variables of its launcher."""

import os
import re
import socket
import struct
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from onsight.errors import OnsightError
from onsight.ranks.watchdog import LAUNCHED

_FIRST_PORT, _PORTS = 20_000, 20_000  # Slurm sets no port: one is derived from the job's number


class RankInfo(NamedTuple):
    """`rank` of `size` processes; `local_rank` of `local_size` on machine number `node`."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    launcher: str


def rank_from_env(variables: Mapping[str, str] = os.environ) -> RankInfo | None:
    """The rank that torchrun or Slurm's srun gave this process; None if it runs alone."""
    if "RANK" in variables and "WORLD_SIZE" in variables:
        info = _rank_from_torchrun(variables)
    elif "SLURM_STEP_NUM_TASKS" in variables:  # set by srun, not in a batch script or by salloc
        info = _rank_from_slurm(variables)
    else:
        return None
    return info if info.size > 1 else None


def slurm_address(variables: Mapping[str, str]) -> tuple[str, int]:
    """Host and port where the ranks of a Slurm step meet: its first node, a port from its job."""
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
    """Slurm's run-length notation: 4(x2),3 means 4, 4 and 3."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in found for _ in range(int(times or 1))]


def _first_host(nodes: str) -> str:
    """The first host of Slurm's node list, such as gpu03 of gpu[03-07,12],cpu1."""
    found = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes


JOIN = timedelta(minutes=5)  # the machines of a cluster do not start all at once

_POLL_SECONDS = 0.1
_LONGEST = timedelta(hours=1)  # the first rank may have to fetch checkpoints


def meet(rank_info: RankInfo) -> dist.Store:
    """The store where these ranks meet, empty at first. Raises OnsightError.

    torchrun keeps one store for all that it starts after each other: there, each start of the
    ranks has a part of its own.
    """
    if LAUNCHED in os.environ:
        host, _, port = os.environ[LAUNCHED].rpartition(":")
        return dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    if rank_info.launcher == "Slurm":
        host, number = slurm_address(os.environ)
        os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(number)}
    try:
        store, _, _ = next(dist.rendezvous("env://", rank_info.rank, rank_info.size, timeout=JOIN))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return _own_part(store, rank_info)
    except (RuntimeError, ValueError) as error:
        raise OnsightError(f"the ranks cannot connect: {error}") from error
    met: dist.Store = store
    return met


def first_says(store: dist.Store, rank_info: RankInfo, key: str, make: Callable[[], str]) -> str:
    """What the first rank makes, on every rank."""
    if rank_info.rank == 0:
        store.set(key, make())
    store.wait([key], _LONGEST)
    said: str = store.get(key).decode()
    return said


def _own_part(store: dist.Store, rank_info: RankInfo) -> dist.Store:
    """The part of a store for this start of the ranks, whatever earlier ones have left there.

    Each rank leaves its name; the first tells every name it sees where to go, until all are there.
    """
    name = uuid.uuid4().hex
    store.set(f"onsight/name/{rank_info.rank}", name)
    if rank_info.rank > 0:
        store.wait([f"onsight/part/{name}"], JOIN)
        part = dist.PrefixStore(store.get(f"onsight/part/{name}").decode(), store)
        part.set(f"met/{rank_info.rank}", "1")
        return part
    part = dist.PrefixStore(f"onsight/{name}", store)
    others = range(1, rank_info.size)
    until = time.monotonic() + JOIN.total_seconds()
    while not part.check([f"met/{rank}" for rank in others]):
        for rank in others:
            with suppress(RuntimeError):
                if store.check([f"onsight/name/{rank}"]):
                    seen = store.get(f"onsight/name/{rank}").decode()
                    store.set(f"onsight/part/{seen}", f"onsight/{name}")
        if time.monotonic() > until:
            break  # the ranks that are missing are named by who waits for them
        time.sleep(_POLL_SECONDS)
    return part


_ADDRESS_OF = 0x8915  # SIOCGIFADDR of Linux


def interface_towards(host: str) -> str | None:
    """The interface from which packets to a host leave; None if it is unknown or loopback.

    Nothing is sent. Many systems name themselves 127.0.0.1 or 127.0.1.1 in /etc/hosts, and gloo
    would then wait there for the ranks of other machines.
    """
    try:
        import fcntl  # not on Windows
    except ImportError:
        return None
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # of UDP: only looks up the route
        address = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # one without an address
                asked = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), _ADDRESS_OF, asked)
                if socket.inet_ntoa(found[20:24]) == address:
                    return None if address.startswith("127.") else name
    return None
