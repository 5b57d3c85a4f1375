"""Run all checks, in order; a check that itself fails becomes a warning."""

from collections.abc import Callable

from onsight.doctor.disk import check_cache, check_cache_disk, check_output_disk
from onsight.doctor.gpus import check_gpu_memory, check_gpus
from onsight.doctor.machine import (
    check_cores,
    check_cpu_speed,
    check_gpu_speed,
    check_load,
    check_memory,
    check_open_files,
    check_shared_memory,
)
from onsight.doctor.report import CheckResult
from onsight.doctor.software import check_pretrained, check_ranks, check_spawn, check_versions
from onsight.errors import UserError

Check = Callable[[], CheckResult | None]  # None if the check does not apply

# Checks that need an idle machine come before those that keep it busy.
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


def examine(on_check: Callable[[str], None] = lambda name: None) -> dict[str, CheckResult]:
    """Return the result of every check that applies here; on_check is called before each."""
    results = {}
    for name, check in CHECKS.items():
        on_check(name)
        if result := _run(check):
            results[name] = result
    return results


def _run(check: Check) -> CheckResult | None:
    try:
        return check()
    except UserError as error:
        return CheckResult("problem", f"{error}.")
    except Exception as error:  # one failure must not hide the results of other checks
        return CheckResult(
            "warning",
            f"This check failed: {type(error).__name__}: {error}",
            "The other checks are not affected.",
            {"error": type(error).__name__},
        )
