"""Threads that leave the processor to the one that talks to clients, when both want it."""

import os
import sys
import threading

_NICE = 10


def yield_to_clients() -> None:
    """Lower the priority of this thread and of those it starts, where a thread has its own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
