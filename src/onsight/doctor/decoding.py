"""How many photographs one core decodes and scales in a second, with Onsight's own decoder."""

import importlib.util
import time

import numpy as np
import torch

from onsight.doctor.line import Line
from onsight.hardware.cores import usable_cores
from onsight.words import plural

_HEIGHT, _WIDTH = 375, 500
_SIDE = 224
_QUALITY = 90


def check_decoding(seconds: float = 0.3) -> Line:
    """One core's rate on a synthetic photograph, decoded to the input size of large networks."""
    if importlib.util.find_spec("simplejpeg") is None:
        return Line(
            "problem",
            "simplejpeg is not installed: JPEGs cannot be decoded.",
            "Install it:\npip install simplejpeg",
        )
    rate, cores = _images_per_second(_photograph(), seconds), usable_cores()
    return Line(
        "ok",
        f"One core decodes {rate:,.0f} JPEGs/s of {_WIDTH}x{_HEIGHT} to {_SIDE}x{_SIDE}; "
        f"{plural(cores, 'core')} could decode a million in {_duration(1e6 / rate / cores)}.",
        figures={"images_per_second_and_core": rate, "cores": cores},
    )


def _images_per_second(jpeg: bytes, seconds: float) -> float:
    from onsight.data.fit import PictureFormat
    from onsight.data.packing import prepare_picture

    target = PictureFormat(_SIDE, _SIDE, 3)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # scaling would use several
    try:
        prepare_picture(jpeg, target)
        start, done = time.perf_counter(), 0
        while not done or time.perf_counter() - start < seconds:
            prepare_picture(jpeg, target)
            done += 1
        return done / (time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)


def _photograph() -> bytes:
    """A JPEG with coarse and fine detail, of about the size of a real photograph's file."""
    import simplejpeg

    rng = np.random.default_rng(0)
    pixels = np.full((_HEIGHT, _WIDTH, 3), 128.0)
    for step, height in ((50, 60.0), (10, 30.0), (2, 12.0)):
        rows, columns = -(-_HEIGHT // step), -(-_WIDTH // step)
        spots = rng.uniform(-height, height, (rows, columns, 3))
        pixels += spots.repeat(step, 0).repeat(step, 1)[:_HEIGHT, :_WIDTH]
    picture = pixels.clip(0, 255).astype(np.uint8)
    encoded: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(picture), _QUALITY, "RGB", "420")
    return encoded


def _duration(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
