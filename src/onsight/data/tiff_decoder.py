"""The process that decodes TIFFs: `python -m onsight.data.tiff_decoder FILE_DESCRIPTOR`.

For each image it receives settings and the file, and replies with a shape and pixels, or a problem.
"""

import json
import math
import resource
import signal
import sys
from multiprocessing.connection import Connection

from onsight.data.pixels import Colour, decode_with_pillow
from onsight.errors import ImageError
from onsight.limits import TIFF_SECONDS


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
    try:
        pixels = decode_with_pillow(data, background, pixel_limit)
    except ImageError as error:
        link.send_bytes(json.dumps([None, str(error)[:500]]).encode())
        return
    link.send_bytes(json.dumps([pixels.shape, None]).encode())
    link.send_bytes(pixels.tobytes())


if __name__ == "__main__":
    main()
