"""Environment variables that tell OpenMP's threads how to wait, how many to be, where to run."""

from collections.abc import Mapping

from onsight_explain.spinning import SHORT_SPIN, SPIN_VARIABLE

VARIABLES = (
    SPIN_VARIABLE,
    "OMP_WAIT_POLICY",
    "OMP_NUM_THREADS",
    "OMP_THREAD_LIMIT",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
)


def set_by_user(environment: Mapping[str, str]) -> dict[str, str]:
    """Those that are set, without what Onsight's command line sets for itself."""
    given = {name: environment[name] for name in VARIABLES if name in environment}
    if given.get(SPIN_VARIABLE) == SHORT_SPIN:
        del given[SPIN_VARIABLE]
    return given
