"""How many CPUs and GPUs of a Ray cluster each process gets."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from onsight.errors import ConfigError
from onsight.words import plural

Node = Mapping[str, float]


class Share(NamedTuple):
    """What each of several processes gets."""

    processes: int
    cpus: int
    gpus: int = 0

    @property
    def resources(self) -> dict[str, float]:
        """The same in Ray's words."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}


def live_nodes(ray: Any) -> list[Node]:
    """The resources of each machine that is there."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def share_among(nodes: Sequence[Node], processes: int, device: str) -> Share:
    """The largest equal shares; processes: 0 for one per GPU or, without any, per machine.

    Every process has a GPU of its own if the cluster has any, unless device is cpu. Raises
    ConfigError if they do not all fit.
    """
    gpus = int(sum(node.get("GPU", 0) for node in nodes)) if device != "cpu" else 0
    if gpus == 0 and device not in ("auto", "cpu"):
        raise ConfigError(f"--device {device}: the Ray cluster has no GPU; leave it out")
    wanted = processes or gpus or len([node for node in nodes if node.get("CPU", 0) >= 1])
    most = int(max((node.get("CPU", 0) for node in nodes), default=0))
    for cpus in range(most, 0, -1):
        if wanted and _room(nodes, cpus, bool(gpus)) >= wanted:
            return Share(wanted, cpus, int(bool(gpus)))
    kind, there = ("GPU", gpus) if gpus else ("CPU", int(sum(n.get("CPU", 0) for n in nodes)))
    fits = _room(nodes, 1, bool(gpus))
    remedy = f"give --ranks {fits} or" if fits else "let"
    others = ", or --device cpu" if gpus else ""
    raise ConfigError(
        f"{plural(wanted, 'rank')} need a {kind} each, but the Ray cluster has {there} on "
        f"{plural(len(nodes), 'machine')}: {remedy} more machines join it (ray start --address "
        f"HOST:PORT){others}"
    )


def _room(nodes: Sequence[Node], cpus: int, with_gpu: bool) -> int:
    """How many processes with so many CPUs each fit."""
    return sum(
        int(min(node.get("CPU", 0) // cpus, node.get("GPU", 0) if with_gpu else node.get("CPU", 0)))
        for node in nodes
    )
