"""The process that decodes TIFFs: `python -m onsight.data.tiff_decoder FILE_DESCRIPTOR`.

For each image it receives settings and the file, and replies with a shape and pixels, or a problem.
"""

import json
import math
import resource
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from onsight.data.pixels import Colour, decode_with_pillow
from onsight.errors import ImageError
from onsight.limits import TIFF_SECONDS

_SPARE_BYTES = 64 * 2**20  # beside what is measured to be needed


def main() -> None:
    """Decode images until the other end of the connection is closed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash must not leave a core file
    with Connection(int(sys.argv[1])) as link:
        while True:
            try:
                background, pixel_limit = json.loads(link.recv_bytes())
                data = link.recv_bytes()
            except EOFError:
                return
            # If the process that waits for the reply is gone, nobody else ends a hanging decoder.
            signal.alarm(2 * math.ceil(TIFF_SECONDS))
            _reply(link, data, tuple(background), pixel_limit)
            signal.alarm(0)


def _reply(link: Connection, data: bytes, background: Colour, pixel_limit: int) -> None:
    def limit(needed_bytes: int) -> None:
        _limit_memory(2 * (needed_bytes + len(data)) + _SPARE_BYTES)

    try:
        pixels = decode_with_pillow(data, background, pixel_limit, limit)
    except ImageError as error:
        link.send_bytes(json.dumps([None, str(error)[:500]]).encode())
        return
    link.send_bytes(json.dumps([pixels.shape, None]).encode())
    link.send_bytes(pixels.tobytes())


def _limit_memory(more_bytes: int) -> None:
    """Let the process use only so much more memory: a tile can be far larger than its image."""
    if sys.platform == "linux":  # elsewhere, the use of memory is not limited, or not known
        used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        limit = used + more_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))


if __name__ == "__main__":
    main()
