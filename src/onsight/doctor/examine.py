"""Everything the doctor looks at, in order; a check that fails is a line itself."""

from collections.abc import Callable

from onsight.doctor.amd import check_amd_gpus
from onsight.doctor.clocks import check_clocks, check_gpu_clocks
from onsight.doctor.cores import check_cores, check_load
from onsight.doctor.decoding import check_decoding
from onsight.doctor.disk import check_cache, check_cache_disk, check_output_disk
from onsight.doctor.gpumemory import check_gpu_memory
from onsight.doctor.gpus import check_gpus
from onsight.doctor.instructions import check_instructions
from onsight.doctor.limits import check_open_files, check_shared_memory
from onsight.doctor.line import Line
from onsight.doctor.memory import check_memory
from onsight.doctor.pretrained import check_pretrained
from onsight.doctor.ranks import check_ranks
from onsight.doctor.spawn import check_spawn
from onsight.doctor.speed import check_cpu_speed, check_gpu_speed
from onsight.doctor.versions import check_versions

Check = Callable[[], Line | None]  # None: it does not apply here

# What looks at the machine at rest comes before what keeps it busy.
CHECKS: tuple[Check, ...] = (
    check_load,
    check_gpus,
    check_amd_gpus,
    check_gpu_memory,
    check_versions,
    check_cores,
    check_instructions,
    check_memory,
    check_shared_memory,
    check_open_files,
    check_spawn,
    check_ranks,
    check_cache_disk,
    check_output_disk,
    check_decoding,
    check_cpu_speed,
    check_gpu_speed,
    check_clocks,
    check_gpu_clocks,
    check_cache,
    check_pretrained,
)


def examine(tell: Callable[[str], None] = lambda topic: None) -> list[Line]:
    """A line for every check that applies here; tell is called with each topic before."""
    lines = []
    for check in CHECKS:
        topic = topic_of(check)
        tell(topic)
        line = _guarded(check, topic)
        if line:
            lines.append(line)
    return lines


def topic_of(check: Check) -> str:
    """What a check is about, by its name."""
    return check.__name__.removeprefix("check_").replace("_", " ")


def _guarded(check: Check, topic: str) -> Line | None:
    try:
        return check()
    except Exception as error:  # one failure must not hide what the others find
        return Line(
            topic,
            "warning",
            f"This could not be looked at: {type(error).__name__}: {error}",
            "The other lines are not affected.",
            {"error": type(error).__name__},
        )
