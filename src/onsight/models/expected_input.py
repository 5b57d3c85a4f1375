"""What images published or given weights expect, and what Onsight's decoding does otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onsight.models.preprocessing import Preprocessing


@dataclass(frozen=True)
class ExpectedInput:
    """The images that weights were trained on.

    mean, std: of each channel, with pixels from 0 to 1; size: (height, width) in pixels;
    crop_share: the part of each side that the central crop keeps; interpolation: that of their
    scaling. None, or an empty text, for what is not known.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int] | None = None
    crop_share: float | None = None
    interpolation: str = ""

    @classmethod
    def of_timm(cls, facts: Mapping[str, Any]) -> "ExpectedInput":
        """From timm's pretrained_cfg. Raises KeyError, TypeError or ValueError."""
        mean, std = (tuple(float(value) for value in facts[name]) for name in ("mean", "std"))
        if len(mean) != len(std) or not min(std) > 0:
            raise ValueError("mean and std do not match")
        _, height, width = facts["input_size"]
        share = facts.get("crop_pct")
        interpolation = str(facts.get("interpolation") or "")
        size = (int(height), int(width))
        return cls(mean, std, size, float(share) if share else None, interpolation)

    @classmethod
    def of_run(cls, preprocessing: Preprocessing) -> "ExpectedInput":
        """From the preprocessing of another run, which decodes as this one does."""
        return cls(preprocessing.mean, preprocessing.std, preprocessing.input_shape[1:])

    def scaling(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(mean, std) for images of 1 or 3 channels; grey ones take the channels' mean."""
        if len(self.mean) == channels:
            return self.mean, self.std
        mean, std = (sum(values) / len(values) for values in (self.mean, self.std))
        return (mean,) * channels, (std,) * channels

    def differences(self, size: tuple[int, int], fit: str) -> str:
        """What differs for images of this (height, width) and --fit, or an empty text."""
        parts = []
        if self.size not in (None, size):
            parts.append(f"{_sides(self.size)} pixels (here {_sides(size)})")
        if self.interpolation not in ("", "bilinear"):
            parts.append(f"{self.interpolation} scaling (here bilinear)")
        if self.crop_share is not None and self.crop_share < 1:
            here = "the central crop" if fit == "crop" else "the whole image"
            shown = f"{round(100 * self.crop_share, 1):g}%"
            parts.append(f"a central crop of {shown} of each side (here {here}, --fit {fit})")
        return f"these weights were trained for {', '.join(parts)}" if parts else ""


def _sides(size: tuple[int, int] | None) -> str:
    return "x".join(str(side) for side in size or ())
