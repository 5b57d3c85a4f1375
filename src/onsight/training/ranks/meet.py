"""The store where the ranks of a job meet: their launcher's, or one that the first rank hosts."""

import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from onsight.errors import OnsightError
from onsight.training.ranks.rank_info import RankInfo, slurm_address
from onsight.training.ranks.watchdog import LAUNCHED

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
