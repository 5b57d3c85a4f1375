"""Stops a script at its first call of torch that a what-if can change, where it can be forked."""

import functools
import os
import stat
import threading
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from onsight_explain.tracing.patches import Patches

_STANDARD_FILES = 3  # input, output, errors


class ForkPoint:
    """Watches a script from `install` until its first call of that kind.

    Until then torch computes in one thread, because a pool of threads does not survive a fork; what
    the script says about threads is kept for later, in `threads`. reached: called at that point,
    in the script's own frame; when it returns, the call is made, as what-ifs may have changed it.
    is_here: called before a thread is started; whether that is the point.
    """

    def __init__(self, reached: Callable[[], None], is_here: Callable[[], bool]) -> None:
        self.reached, self.is_here = reached, is_here
        self.threads = torch.get_num_threads()
        self._patches = Patches()

    def install(self) -> None:
        """Begin to watch."""
        torch.set_num_threads(1)
        for owner, name in _events():
            self._patches.put(owner, name, self._first(owner, name))
        self._patches.put(threading.Thread, "start", self._start(threading.Thread.start))
        self._patches.put(torch, "set_num_threads", self._set_threads)
        self._patches.put(torch, "get_num_threads", lambda: self.threads)

    def _first(self, owner: Any, name: str) -> Callable[..., Any]:
        proceed = getattr(owner, name)
        is_over = False

        @functools.wraps(proceed)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal proceed, is_over
            # Lightning puts this function back after we have restored the original one.
            if not is_over and _is_main_thread():
                is_over = True
                self._reach()
                proceed = getattr(owner, name)
            return proceed(*args, **kwargs)

        return call

    def _start(self, original: Callable[[threading.Thread], None]) -> Callable[..., None]:
        @functools.wraps(original)
        def start(thread: threading.Thread) -> None:
            if _is_main_thread() and self.is_here():
                self._reach()
            original(thread)

        return start

    def _reach(self) -> None:
        self._patches.undo()
        self.reached()

    def _set_threads(self, count: int) -> None:
        self.threads = count


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def why_not(native_threads: int) -> str:
    """Why this process cannot be forked now, or "". native_threads: before the script ran."""
    if threading.active_count() > 1:
        return "the script has started threads"
    if active_children():
        return "the script has started processes"
    if count_native_threads() > native_threads:  # such as a pool, which does not survive a fork
        return "a library of the script has started threads"
    return ""


def count_native_threads() -> int:
    """Threads of this process, those of libraries too."""
    return len(os.listdir("/proc/self/task"))


def own_files() -> None:
    """Give a forked process places of its own in the files that it has open for reading."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number < _STANDARD_FILES or not _is_read(number):
            continue
        place = os.lseek(number, 0, os.SEEK_CUR)
        again = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
        os.lseek(again, place, os.SEEK_SET)
        os.dup2(again, number, inheritable=False)
        os.close(again)


def _is_read(number: int) -> bool:
    import fcntl

    try:
        is_file = stat.S_ISREG(os.fstat(number).st_mode)
        access = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:  # closed meanwhile, such as the list of the files itself
        return False
    return is_file and access == os.O_RDONLY


def _events() -> Iterator[tuple[Any, str]]:
    yield DataLoader, "__init__"
    yield nn.Module, "__call__"
    yield torch.autograd, "backward"
    yield BaseProcess, "__init__"  # a process belongs to the one that makes it
    optimizers: list[type] = [Optimizer, *_kinds(Optimizer)]
    for kind in optimizers:
        if "__init__" in vars(kind):
            yield kind, "__init__"


def _kinds(base: type) -> Iterator[type]:
    derived: list[type] = type.__subclasses__(base)
    for kind in derived:
        yield kind
        yield from _kinds(kind)
