"""Whether other work on the machine would spoil what is timed."""

import os

from onsight.report.console import Reporter

_BUSY_SHARE = 0.5  # of the machine's cores at work before anything is timed


def warn_if_busy(reporter: Reporter) -> None:
    """Say so where the machine is busy already."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load > _BUSY_SHARE * cores:
        reporter.warn(
            f"other work keeps this machine busy (load {load:.1f} on {cores} cores), which slows "
            "several threads more than one; measure again when it is idle"
        )
