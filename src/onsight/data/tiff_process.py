"""TIFF decoding in a separate process, so that a hang or crash costs only the image.

Pillow decodes TIFFs with libtiff, in whose releases most faults of this kind were found. Each
thread that decodes TIFFs starts a process for its first one and reuses it for the next.
"""

import atexit
import json
import os
import subprocess
from collections.abc import Sequence
from multiprocessing.connection import Pipe

import numpy as np

from onsight.data.pixels import Colour, Pixels
from onsight.errors import DataError, ImageError
from onsight.limits import TIFF_SECONDS
from onsight_explain.python_process import child_command

_COMMAND = child_command("onsight.data.tiff_decoder")
_REPLY_BYTES = 10_000  # longest reply with a shape or a problem


def decode_tiff(data: bytes, background: Colour, pixel_limit: int) -> Pixels:
    """Decode a TIFF as Pillow does. Raises ImageError, also if its decoder hangs or crashes.

    After a crash the image is tried once more in a new process: the old one may have been killed
    for want of memory elsewhere, and an image that crashes its decoder does so again.
    """
    try:
        process = _idle.pop()
    except IndexError:
        process = TiffProcess()
    try:
        return _decode(process, data, background, pixel_limit)
    except DecoderCrashed:
        return _decode(TiffProcess(), data, background, pixel_limit)


class DecoderCrashed(ImageError):
    """The process ended before it replied."""


class TiffProcess:
    """A process that decodes one TIFF after the other, each within a time limit."""

    def __init__(self, command: Sequence[str] = _COMMAND, seconds: float = TIFF_SECONDS) -> None:
        self._seconds = seconds
        self._link, end = Pipe()
        try:
            self._process = subprocess.Popen(
                [*command, str(end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[end.fileno()],
                process_group=0,  # shields it from Ctrl-C, which would lose the image being decoded
            )
        except OSError as error:
            raise DataError(f"cannot start a process to decode TIFFs: {error}") from error
        finally:
            end.close()

    @property
    def is_running(self) -> bool:
        """Whether the process can decode another image."""
        return not self._link.closed

    def decode(self, data: bytes, background: Colour, pixel_limit: int) -> Pixels:
        """Return a TIFF's pixels. Raises ImageError; after a hang or crash the process is gone."""
        try:
            self._link.send_bytes(json.dumps([background, pixel_limit]).encode())
            self._link.send_bytes(data)
            if not self._link.poll(self._seconds):
                raise ImageError(f"its decoder gave no answer within {self._seconds:g} s")
            shape, problem = json.loads(self._link.recv_bytes(_REPLY_BYTES))
            content = b"" if problem else self._link.recv_bytes(3 * pixel_limit)
        except (EOFError, OSError) as error:
            self.end()
            raise DecoderCrashed("its decoder crashed") from error
        except BaseException:
            self.end()
            raise
        if problem:
            raise ImageError(problem)
        return np.frombuffer(content, np.uint8).reshape(shape)

    def end(self) -> None:
        """Kill the process and wait until it is gone."""
        self._link.close()
        self._process.kill()
        self._process.wait()


def _decode(process: TiffProcess, data: bytes, background: Colour, pixel_limit: int) -> Pixels:
    try:
        return process.decode(data, background, pixel_limit)
    finally:
        if process.is_running:
            _idle.append(process)


def _end_idle() -> None:
    while _idle:
        _idle.pop().end()


_idle: list[TiffProcess] = []
atexit.register(_end_idle)
os.register_at_fork(after_in_child=_idle.clear)  # idle decoders belong to the parent
