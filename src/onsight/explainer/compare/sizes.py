"""The batch sizes of a comparison."""

from collections.abc import Sequence

from onsight.errors import ConfigError

_USUAL = (4, 32, 128, 512)


def read_batch_sizes(text: str) -> list[int]:
    """Batch sizes from text such as 4,32. Raises ConfigError."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"--batch-sizes {text}: give whole numbers separated by commas, such as 4,32,128"
        ) from error


def choose_batch_sizes(asked: Sequence[int], own: int, images: int) -> list[int]:
    """Batch sizes in ascending order; if none are asked for, the usual ones and the config's own.

    images: how many there are to train on. Raises ConfigError for a size below 1, one given
    twice, or one larger than the training set.
    """
    if not asked:
        return sorted({min(size, images) for size in (*_USUAL, own)})
    for size in asked:
        if size < 1:
            raise ConfigError(f"--batch-sizes: {size} is not a batch size; it must be at least 1")
        if asked.count(size) > 1:
            raise ConfigError(f"--batch-sizes names {size} twice; name each size once")
        if size > images:
            raise ConfigError(
                f"--batch-sizes: {size:,} is more than the {images:,} training images"
            )
    return sorted(asked)


def second_size(size: int, images: int) -> int | None:
    """Another size to time beside a single one, far enough to tell the costs apart; or None."""
    other = size // 4 if size >= 8 else min(8 * size, images)
    return other if other != size else None
