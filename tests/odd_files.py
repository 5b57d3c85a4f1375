"""Over 200 images of every mode, format and orientation, as files."""

import io

import numpy as np
from PIL import Image

MODES = {
    "JPEG": ("L", "RGB", "CMYK"),
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "TIFF": ("1", "L", "P", "RGB", "RGBA", "CMYK", "I;16"),
    "WEBP": ("RGB", "RGBA"),
    "BMP": ("1", "L", "P", "RGB"),
    "GIF": ("L", "P", "RGB"),
}
TURNED = ("JPEG", "PNG", "TIFF", "WEBP")
ORIENTATION = 0x0112


def odd_files():
    """(name, bytes): a bar across or down in noise, stored in all of these ways."""
    rng = np.random.default_rng(4)
    for kind, modes in MODES.items():
        for mode in modes:
            for turn in range(1, 9):
                exif = Image.Exif()
                exif[ORIENTATION] = turn
                options = {"exif": exif} if kind in TURNED else {}
                file = io.BytesIO()
                _image(mode, rng).save(file, kind, **options)
                yield f"{kind}-{mode.replace(';', '-')}-{turn}.bin", file.getvalue()


def _image(mode, rng):
    height, width = rng.integers(9, 30, 2)
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 2**16, (height, width), np.uint16))
    pixels = rng.integers(0, 90, (height, width, 4), np.uint8)
    pixels[height // 2] = 255
    return Image.fromarray(pixels).convert("RGB" if mode == "CMYK" else mode).convert(mode)
