"""How an image becomes a network's input, as one value that the model file holds."""

from dataclasses import fields
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
_JsonList = Field(strict=False)  # JSON has lists where these are tuples


class Preprocessing(BaseModel):
    """How images are decoded, fitted and normalised, and the precision; sizes are in pixels.

    The first seven fields are those of ImageFormat; mean and std are for each channel, with
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
        """The preprocessing with these facts. Raises ModelError if any is missing or wrong."""
        try:
            return cls.model_validate(facts)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            found = f" (found {first['input']!r})" if name and first["type"] != "missing" else ""
            reason = f"{name}: {first['msg']}{found}".lstrip(": ")
            raise ModelError(f"the preprocessing is incomplete or damaged: {reason}") from error

    def facts(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def format(self) -> ImageFormat:
        """What every image is decoded and fitted to."""
        return ImageFormat(**self.model_dump(include=_FORMAT_FIELDS))

    @property
    def normalization(self) -> "Normalization":
        """How pixels are turned into the network's input."""
        from onsight.data.normalization import Normalization  # loads torch

        return Normalization(self.mean, self.std, self.format.shown)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the network's input."""
        return self.channels, *self.format.shown
