"""SIGINT, SIGTERM and SIGHUP stop a run after its current step; a second SIGINT, immediately."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """The signal that asked a run to stop; false if there was none."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None


_active: list[StopRequest] = []  # of the runs in this process


def request_stop(signal_number: int) -> None:
    """Ask the runs in this process to stop, as if it had received this signal."""
    for request in _active:
        request.signal_number = signal_number


@contextmanager
def stop_on_signals(request: StopRequest) -> Iterator[None]:
    """Store stop signals in the request while the block runs.

    If the block ends normally after a signal, which it then did not see in time, the signal is
    raised again for the previous handlers.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if request and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal_number = number

    _active.append(request)
    try:
        with handle_stop_signals(handle):
            yield
    finally:
        _active.remove(request)
    if request and threading.current_thread() is threading.main_thread():
        signal.raise_signal(request.signal_number or signal.SIGTERM)


@contextmanager
def handle_stop_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call a handler for SIGINT, SIGTERM and SIGHUP while the block runs.

    SIGHUP, sent when a terminal closes, stays ignored where it already is, as under nohup. Outside
    the main thread, which alone may set handlers, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    if hang_up and signal.getsignal(hang_up) is not signal.SIG_IGN:
        numbers.append(hang_up)
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)
