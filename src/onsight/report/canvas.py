"""A page of images and text, placed by pixel and saved as PNG.

Nothing here uses pyplot.
"""

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

_DPI = 100
# matplotlib's own font has no Chinese, Japanese or Korean.
_WIDER_FONTS = (
    "Noto Sans CJK SC", "Source Han Sans SC", "Microsoft YaHei", "PingFang SC",
    "Hiragino Sans", "Malgun Gothic", "WenQuanYi Zen Hei", "Arial Unicode MS",
)  # fmt: skip


class Words(NamedTuple):
    """Text with its look; size in points."""

    text: str
    colour: str
    size: float
    weight: str = "normal"


def tile(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Pixels (H, W, 1 or 3) as (H, W, 3) that fits a square; tiny ones grow pixel by pixel."""
    image = Image.fromarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    factor = side // max(image.size)
    size = image.width * factor, image.height * factor
    return np.asarray(image.resize(size, Image.Resampling.NEAREST))


class Canvas:
    """A white page; x goes right and y down from its top left corner, in pixels."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.figure = Figure((width / _DPI, height / _DPI), _DPI)
        installed = set(get_font_names())
        self.fonts = ["DejaVu Sans", *(font for font in _WIDER_FONTS if font in installed)]

    def square(self, x: int, y: int, side: int, **style: Any) -> None:
        """A square; style: matplotlib's properties of a patch."""
        corner = x / self.width, 1 - (y + side) / self.height
        sides = side / self.width, side / self.height
        self.figure.add_artist(
            Rectangle(corner, *sides, transform=self.figure.transFigure, **style)
        )

    def image(self, x: int, y: int, pixels: NDArray[np.uint8]) -> None:
        """Pixels (H, W, 3), drawn one to one."""
        self.figure.figimage(pixels, x, self.height - y - len(pixels), origin="upper", zorder=2)

    def write(self, x: int, y: int, words: Words) -> None:
        """Words with their top left corner at (x, y)."""
        # Fonts lack lone surrogates, which stand for the bytes of a name that is not UTF-8.
        text = words.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        self.figure.text(
            x / self.width, 1 - y / self.height, text, color=words.colour, fontsize=words.size,
            fontweight=words.weight, fontfamily=self.fonts, verticalalignment="top",
            parse_math=False, usetex=False,
        )  # fmt: skip

    def as_png(self) -> bytes:
        """The page as a PNG file."""
        data = io.BytesIO()
        # A user's own settings may crop what is saved.
        with matplotlib.rc_context({"savefig.bbox": None}), warnings.catch_warnings():
            # A missing glyph is drawn as a box.
            warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
            self.figure.savefig(data, format="png", dpi=_DPI, facecolor="white")
        return data.getvalue()
