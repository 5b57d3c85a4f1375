"""A script run as several ranks, as by torchrun: their environment, and what they saw together."""

import os
import socket
from pathlib import Path

from onsight.explainer.script.peers import path_of
from onsight.explainer.script.slowest import slowest
from onsight.explainer.script.trace import RankFacts, Trace

_LOOPBACK = "127.0.0.1"


def rank_variables(ranks: int) -> list[dict[str, str]]:
    """What torchrun puts into the environment of each rank; nothing for one alone."""
    if ranks == 1:
        return [{}]
    # As torchrun does, unless the user has.
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
    port = _free_port()
    return [
        threads
        | {
            "MASTER_ADDR": _LOOPBACK,
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": "0",
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
        }
        for rank in range(ranks)
    ]


def gather(out: Path, is_complete: bool = False) -> Trace | None:
    """The trace of the slowest rank, or of rank 0, with the facts of all; None if there is none.

    is_complete: only if every rank has reported.
    """
    if not out.exists():
        return None
    trace = _read(out)
    paths = [path_of(out, rank) for rank in range(trace.world)]
    if is_complete and not all(path.exists() for path in paths):
        return None
    if trace.world == 1:
        return trace
    seen = [one for one in map(_read, filter(Path.exists, paths)) if one.steps]
    ranks = [_facts(one) for one in seen]
    late = slowest(ranks)
    trace = next((one for one in seen if late and one.rank == late.rank), trace)
    return trace.model_copy(update={"ranks": ranks})


def _read(path: Path) -> Trace:
    return Trace.model_validate_json(path.read_text(encoding="utf-8"))


def _facts(trace: Trace) -> RankFacts:
    return RankFacts(
        rank=trace.rank,
        seconds=trace.seconds,
        steps=trace.steps,
        images=trace.images,
        phases=trace.phases,
    )


def _free_port() -> int:
    with socket.create_server((_LOOPBACK, 0)) as server:
        port: int = server.getsockname()[1]
        return port
