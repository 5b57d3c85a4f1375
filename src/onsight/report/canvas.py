"""A canvas of images and text, placed by pixel and saved as PNG (without pyplot)."""

import io
import warnings
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font_names
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from onsight.files import PNG_METADATA

_DPI = 100
# DejaVu Sans, matplotlib's default, has no CJK glyphs.
_CJK_FONTS = (
    "Noto Sans CJK SC", "Source Han Sans SC", "Microsoft YaHei", "PingFang SC",
    "Hiragino Sans", "Malgun Gothic", "WenQuanYi Zen Hei", "Arial Unicode MS",
)  # fmt: skip


class CanvasText(NamedTuple):
    """Text with its style."""

    text: str
    colour: str
    size: float  # points
    weight: str = "normal"


def tile(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Fit pixels (H, W, 1 or 3) into a square, as (H, W, 3).

    Small images are upscaled by an integer factor.
    """
    image = Image.fromarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    factor = side // max(image.size)
    size = image.width * factor, image.height * factor
    return np.asarray(image.resize(size, Image.Resampling.NEAREST))


class Canvas:
    """A white canvas; x goes right and y down from its top left corner, in pixels."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.figure = Figure((width / _DPI, height / _DPI), _DPI)
        installed = set(get_font_names())
        self.fonts = ["DejaVu Sans", *(font for font in _CJK_FONTS if font in installed)]

    def square(self, x: int, y: int, side: int, **style: Any) -> None:
        """Draw a square; style: properties of a matplotlib patch."""
        corner = x / self.width, 1 - (y + side) / self.height
        sides = side / self.width, side / self.height
        self.figure.add_artist(
            Rectangle(corner, *sides, transform=self.figure.transFigure, **style)
        )

    def image(self, x: int, y: int, pixels: NDArray[np.uint8]) -> None:
        """Draw pixels (H, W, 3) without scaling."""
        self.figure.figimage(pixels, x, self.height - y - len(pixels), origin="upper", zorder=2)

    def write(self, x: int, y: int, text: CanvasText) -> None:
        """Write text with its top left corner at (x, y)."""
        # Lone surrogates stand for the bytes of a name that is not UTF-8; fonts lack them.
        drawable = text.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        self.figure.text(
            x / self.width, 1 - y / self.height, drawable, color=text.colour, fontsize=text.size,
            fontweight=text.weight, fontfamily=self.fonts, verticalalignment="top",
            parse_math=False, usetex=False,
        )  # fmt: skip

    def as_png(self) -> bytes:
        """Return the canvas as a PNG file."""
        data = io.BytesIO()
        # The user's matplotlib settings may crop saved figures.
        with matplotlib.rc_context({"savefig.bbox": None}), warnings.catch_warnings():
            # A missing glyph is drawn as a box.
            warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
            self.figure.savefig(
                data, format="png", dpi=_DPI, facecolor="white", metadata=PNG_METADATA
            )
        return data.getvalue()
