"""Chooses the size of the model's input and the size and format of packed images."""

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.fit import ImageFormat
from onsight.data.packing import PackJob
from onsight.data.sources.source import Source

USUAL_SIZE = (64, 64)  # (height, width) in pixels if images differ in size or are large
SAME_SIZE = "all sampled images have this size"  # the reason for keeping it

_SMALL = 64  # pixels a side; images up to this size keep their size
_THUMBNAIL = 64  # pixels of the longer side of packed images if images are streamed
_CROP_MARGIN = 8 / 7  # ratio of the packed size to the input size, such as 256 for 224


def choose_size(
    source: Source, requested: tuple[int, int] | None, preferred: tuple[int, int] | None
) -> Choice[tuple[int, int]]:
    """Choose the (height, width) of the model's input in pixels.

    Args:
        source: The images.
        requested: The size that the user set, if any.
        preferred: The size that the model was designed for, None if it accepts any.
    """
    if requested:
        return Choice(requested, "set by you")
    if preferred:
        return Choice(preferred, "the size the model was made for")
    common = find_common_size(source)
    if common:
        return Choice(common, SAME_SIZE)
    return Choice(USUAL_SIZE, "images differ in size or are large (--image-size)")


def find_common_size(source: Source) -> tuple[int, int] | None:
    """Return the (height, width) of all sampled images if they are small and of one size."""
    sizes = set(source.sizes)
    if len(sizes) != 1:
        return None
    (only,) = sizes
    return only if max(only) <= _SMALL else None


def choose_packed_size(
    source: Source, size: tuple[int, int], config: Config
) -> Choice[tuple[int, int]]:
    """Choose the (height, width) of packed images, which are larger if crops benefit.

    Args:
        source: The images.
        size: The (height, width) of the model's input.
        config: The settings.
    """
    if config.residency == "stream":
        scale = min(1.0, _THUMBNAIL / max(size))
        small = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
        return Choice(small, "thumbnails only: images are decoded for every batch")
    if config.crop_area == 1:
        return Choice(size, "the model's input size")
    roomy = round(size[0] * _CROP_MARGIN), round(size[1] * _CROP_MARGIN)
    large = sum(height >= roomy[0] and width >= roomy[1] for height, width in source.sizes)
    if 2 * large < len(source.sizes):
        return Choice(size, "most sampled images have no more detail for crops")
    return Choice(roomy, "8/7 of the model's input size, so that crops keep their detail")


def make_format(config: Config, size: tuple[int, int], packed: tuple[int, int]) -> ImageFormat:
    """Return the format of packed images.

    Args:
        config: The settings. If channels are "auto", the format has 0, which keeps stored channels.
        size: The (height, width) of the model's input.
        packed: The (height, width) of packed images.
    """
    return ImageFormat(
        *packed,
        0 if config.channels == "auto" else int(config.channels),
        config.fit,
        config.background_rgb,
        config.pixel_limit,
        None if packed == size else size,
    )


def make_pack_job(source: Source, size: tuple[int, int], config: Config) -> PackJob:
    """Return the images to decode for an input of this (height, width), and their format."""
    packed = choose_packed_size(source, size, config).value
    return PackJob(source, make_format(config, size, packed))
