"""What a process of its own costs a TIFF: pictures per second apart and in the same process.

python benchmarks/tiff_process.py
"""

import io
import time
from collections.abc import Callable

import numpy as np
from PIL import Image

from onsight.data.decode import decode
from onsight.data.pillow_pixels import Pixels, decode_with_pillow

ROUNDS = 5
PICTURES = 40
SIDES = (64, 512, 2048)


def tiff(side: int) -> bytes:
    """A smooth picture with a little noise, compressed with LZW."""
    ramp = np.linspace(0, 200, side)[:, None, None] + np.zeros((side, side, 3))
    noise = np.random.default_rng(0).integers(0, 4, ramp.shape)
    file = io.BytesIO()
    Image.fromarray((ramp + noise).astype(np.uint8)).save(file, "TIFF", compression="tiff_lzw")
    return file.getvalue()


def seconds(decoder: Callable[[bytes], Pixels], data: bytes) -> float:
    begun = time.perf_counter()
    for _ in range(PICTURES):
        decoder(data)
    return (time.perf_counter() - begun) / PICTURES


def here(data: bytes) -> Pixels:
    return decode_with_pillow(data, (255, 255, 255), 64_000_000)


def main() -> None:
    begun = time.perf_counter()
    decode(tiff(8))
    print(f"started in {time.perf_counter() - begun:.2f} s")
    for side in SIDES:
        data = tiff(side)
        pairs = [(seconds(here, data), seconds(decode, data)) for _ in range(ROUNDS)]
        same, apart = (float(np.median(one)) for one in zip(*pairs, strict=True))
        print(f"{side} px: {same * 1e3:.2f} ms, apart {apart * 1e3:.2f} ms ({apart / same:.2f})")


if __name__ == "__main__":
    main()
