"""SIGINT, SIGTERM and SIGHUP ask a run to stop at its next step; a second SIGINT, at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether a signal has asked to stop, and which."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None


_open: list[StopRequest] = []  # of the runs in this process


def ask_to_stop(signal_number: int) -> None:
    """Ask the runs in this process to stop, as if it had received this signal."""
    for request in _open:
        request.signal_number = signal_number


@contextmanager
def stop_on_signals(request: StopRequest) -> Iterator[None]:
    """Note these signals in a request while the block runs; then restore the handlers.

    One that came when the block no longer looked is passed on to them.
    """

    def note(number: int, frame: FrameType | None) -> None:
        if request and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal_number = number

    _open.append(request)
    try:
        with handling(note):
            yield
    finally:
        _open.remove(request)
    if request and threading.current_thread() is threading.main_thread():
        signal.raise_signal(request.signal_number or signal.SIGTERM)


@contextmanager
def handling(note: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let the signals that ask to stop call a function; outside the main thread, nothing.

    SIGHUP, which the end of a terminal sends, is left ignored where it is, as under nohup.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    if hang_up and signal.getsignal(hang_up) is not signal.SIG_IGN:
        numbers.append(hang_up)
    former = {number: signal.signal(number, note) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
