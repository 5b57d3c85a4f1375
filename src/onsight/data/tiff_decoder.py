"""The process that decodes TIFFs: `python -m onsight.data.tiff_decoder FILE_DESCRIPTOR`.

For each image it gets settings and the file, and answers with a shape and pixels, or a problem.
"""

import json
import resource
import sys
from multiprocessing.connection import Connection

from onsight.data.pillow_pixels import decode_with_pillow
from onsight.errors import ImageError


def main() -> None:
    """Answer until the other end is closed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no file left behind by a crash
    with Connection(int(sys.argv[1])) as link:
        while True:
            try:
                background, pixel_limit = json.loads(link.recv_bytes())
                data = link.recv_bytes()
            except EOFError:
                return
            _answer(link, data, tuple(background), pixel_limit)


def _answer(link: Connection, data: bytes, background: tuple[int, int, int], limit: int) -> None:
    try:
        pixels = decode_with_pillow(data, background, limit)
    except ImageError as error:
        link.send_bytes(json.dumps([None, str(error)[:500]]).encode())
        return
    link.send_bytes(json.dumps([pixels.shape, None]).encode())
    link.send_bytes(pixels.tobytes())


if __name__ == "__main__":
    main()
