"""Whether other work on this machine would distort the timings."""

import os

from onsight.explainer.console import Messages

_BUSY_SHARE = 0.5  # of the cores are busy before anything is timed


def warn_if_busy(messages: Messages) -> None:
    """Warn if the machine is busy already."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load > _BUSY_SHARE * cores:
        messages.warn(
            f"this machine is busy with other work (load {load:.1f} on {cores} cores), which slows "
            "several threads down more than one; measure again when it is idle"
        )
