"""The conversion of images to a network's input, and the input that weights expect.

C channels, H height, W width. Sizes are (height, width) in pixels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from onsight.data.fit import Fit, ImageFormat
from onsight.errors import ModelError
from onsight.limits import INPUT_SIDE

if TYPE_CHECKING:
    from onsight.data.normalization import Normalization

_FORMAT_FIELDS = {field.name for field in fields(ImageFormat)}
_Byte = Annotated[int, Field(ge=0, le=255)]
_Side = Annotated[int, Field(ge=1, le=INPUT_SIDE)]
_JsonList = Field(strict=False)  # JSON has lists in place of tuples


class Preprocessing(BaseModel):
    """The settings to decode, fit and normalise images, and the precision.

    The fields up to decoded_for are those of ImageFormat. The mean and std of each channel are for
    pixels from 0 to 1.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    height: _Side
    width: _Side
    channels: Literal[1, 3]
    fit: Fit
    background: Annotated[tuple[_Byte, _Byte, _Byte], _JsonList]
    pixel_limit: PositiveInt
    input_size: Annotated[tuple[_Side, _Side] | None, _JsonList] = None
    decoded_for: Annotated[tuple[_Side, _Side] | None, _JsonList] = None
    mean: Annotated[tuple[FiniteFloat, ...], _JsonList]
    std: Annotated[tuple[PositiveFloat, ...], _JsonList]
    precision: Literal["fp32", "bf16", "fp16"]

    @model_validator(mode="after")
    def _check_channels(self) -> "Preprocessing":
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError("there must be one mean and one std for each channel")
        return self

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "Preprocessing":
        """Read the settings from a file's facts. Raises ModelError if any is missing or invalid."""
        try:
            return cls.model_validate(facts)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            value = f" (found {first['input']!r})" if name and first["type"] != "missing" else ""
            reason = f"{name}: {first['msg']}{value}".lstrip(": ")
            raise ModelError(f"the preprocessing is incomplete or damaged: {reason}") from error

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def format(self) -> ImageFormat:
        """The format that every image is decoded and fitted to."""
        return ImageFormat(**self.model_dump(include=_FORMAT_FIELDS))

    @property
    def normalization(self) -> "Normalization":
        """The conversion of pixels to the network's input."""
        from onsight.data.normalization import Normalization  # loads torch

        return Normalization(self.mean, self.std, self.format.model_size)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the network's input."""
        return self.channels, *self.format.model_size


@dataclass(frozen=True)
class ExpectedInput:
    """The input that weights were trained on."""

    mean: tuple[float, ...]  # mean of each channel, for pixels from 0 to 1
    std: tuple[float, ...]  # standard deviation of each channel
    size: tuple[int, int] | None = None  # None if unknown
    crop_share: float | None = None  # fraction of each side in a central crop, None if unknown
    interpolation: str = ""  # name of the interpolation, empty if unknown

    @classmethod
    def of_timm(cls, facts: Mapping[str, Any]) -> "ExpectedInput":
        """Read timm's pretrained_cfg. Raises KeyError, TypeError or ValueError."""
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
        """Convert the preprocessing of another run, whose crop and interpolation do not differ."""
        return cls(preprocessing.mean, preprocessing.std, preprocessing.input_shape[1:])

    def scaling(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return (mean, std) for images of 1 or 3 channels, averaged if their number differs."""
        if len(self.mean) == channels:
            return self.mean, self.std
        mean, std = (sum(values) / len(values) for values in (self.mean, self.std))
        return (mean,) * channels, (std,) * channels

    def describe_differences(self, size: tuple[int, int], fit: str) -> str:
        """Describe how images of a size and --fit differ from those of training.

        Returns:
            A sentence, empty if they do not differ.
        """
        parts = []
        if self.size not in (None, size):
            parts.append(f"{_sides(self.size)} pixels (here {_sides(size)})")
        if self.interpolation not in ("", "bilinear"):
            parts.append(f"{self.interpolation} scaling (here bilinear)")
        if self.crop_share is not None and self.crop_share < 1:
            here = "the central crop" if fit == "crop" else "the whole image"
            percent = f"{round(100 * self.crop_share, 1):g}%"
            parts.append(f"a central crop of {percent} of each side (here {here}, --fit {fit})")
        return f"these weights were trained for {', '.join(parts)}" if parts else ""


def _sides(size: tuple[int, int] | None) -> str:
    return "x".join(str(side) for side in size or ())
