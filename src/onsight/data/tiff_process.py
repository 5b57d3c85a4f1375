"""TIFFs are decoded in a process of their own: one that hangs or crashes it costs only itself.

Their decoder, libtiff, is the one in whose releases most such faults were found. The process is
started for the first TIFF, one for each thread that decodes, and kept for the next.
"""

import atexit
import json
import os
import subprocess
from collections.abc import Sequence
from multiprocessing.connection import Pipe

import numpy as np

from onsight.data.pillow_pixels import Colour, Pixels
from onsight.errors import DataError, ImageError
from onsight.limits import TIFF_SECONDS
from onsight_explain.python_process import child_command

_COMMAND = child_command("onsight.data.tiff_decoder")
_MESSAGE_BYTES = 10_000


def decode_tiff(data: bytes, background: Colour, pixel_limit: int) -> Pixels:
    """Decode a TIFF as Pillow does. Raises ImageError, also if its decoder hangs or crashes.

    A process that ends is replaced once: it may have been killed for want of memory elsewhere, and
    an image that crashes its decoder does so again.
    """
    try:
        decoder = _idle.pop()
    except IndexError:
        decoder = TiffProcess()
    try:
        return _decode(decoder, data, background, pixel_limit)
    except DecoderCrashed:
        return _decode(TiffProcess(), data, background, pixel_limit)


def _decode(decoder: "TiffProcess", data: bytes, background: Colour, pixel_limit: int) -> Pixels:
    try:
        return decoder.decode(data, background, pixel_limit)
    finally:
        if decoder.is_running:
            _idle.append(decoder)


class DecoderCrashed(ImageError):
    """The process ended before it had answered."""


class TiffProcess:
    """A process that decodes one TIFF after the other. seconds: that it has for each."""

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
                process_group=0,  # Ctrl-C is for us: the image in work would be lost
            )
        except OSError as error:
            raise DataError(f"cannot start a process to decode TIFFs: {error}") from error
        finally:
            end.close()

    @property
    def is_running(self) -> bool:
        """Whether it can be asked again: neither crashed nor ended."""
        return not self._link.closed

    def decode(self, data: bytes, background: Colour, pixel_limit: int) -> Pixels:
        """The pixels of a TIFF. Raises ImageError; after a hang or crash the process is gone."""
        try:
            self._link.send_bytes(json.dumps([background, pixel_limit]).encode())
            self._link.send_bytes(data)
            if not self._link.poll(self._seconds):
                raise ImageError(f"its decoder gave no answer within {self._seconds:g} s")
            shape, problem = json.loads(self._link.recv_bytes(_MESSAGE_BYTES))
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
        """End the process."""
        self._link.close()
        self._process.kill()
        self._process.wait()


_idle: list[TiffProcess] = []


def _end_idle() -> None:
    while _idle:
        _idle.pop().end()


atexit.register(_end_idle)
os.register_at_fork(after_in_child=_idle.clear)  # they belong to the parent
