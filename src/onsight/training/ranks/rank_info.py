"""Which rank this process is, from the environment variables of its launcher."""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

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
