"""The doctor's checks, in order; a check that itself fails becomes a warning."""

from collections.abc import Callable

from onsight.doctor.cores import check_cores, check_load
from onsight.doctor.disk import check_cache, check_cache_disk, check_output_disk
from onsight.doctor.gpu_memory import check_gpu_memory
from onsight.doctor.gpus import check_gpus
from onsight.doctor.limits import check_open_files, check_shared_memory
from onsight.doctor.line import Line
from onsight.doctor.memory import check_memory
from onsight.doctor.pretrained import check_pretrained
from onsight.doctor.ranks import check_ranks
from onsight.doctor.spawn import check_spawn
from onsight.doctor.speed import check_cpu_speed, check_gpu_speed
from onsight.doctor.versions import check_versions

Check = Callable[[], Line | None]  # None where it does not apply

# Checks that need a quiet machine come before those that keep it busy.
CHECKS: dict[str, Check] = {
    "load": check_load,
    "gpus": check_gpus,
    "gpu memory": check_gpu_memory,
    "versions": check_versions,
    "cores": check_cores,
    "memory": check_memory,
    "shared memory": check_shared_memory,
    "open files": check_open_files,
    "spawn": check_spawn,
    "ranks": check_ranks,
    "cache disk": check_cache_disk,
    "output disk": check_output_disk,
    "cpu speed": check_cpu_speed,
    "gpu speed": check_gpu_speed,
    "cache": check_cache,
    "pretrained": check_pretrained,
}


def examine(tell: Callable[[str], None] = lambda topic: None) -> dict[str, Line]:
    """The line of every check that applies here, by topic; tell is given each topic beforehand."""
    lines = {}
    for topic, check in CHECKS.items():
        tell(topic)
        if line := _guarded(check):
            lines[topic] = line
    return lines


def _guarded(check: Check) -> Line | None:
    try:
        return check()
    except Exception as error:  # one failure must not hide what the other checks find
        return Line(
            "warning",
            f"This check failed: {type(error).__name__}: {error}",
            "The other lines are not affected.",
            {"error": type(error).__name__},
        )
