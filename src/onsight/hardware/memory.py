"""Running out of memory, as torch tells it."""

import torch


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch failed for want of memory; not every device has an error type for it."""
    words = str(error)
    return (
        isinstance(error, torch.OutOfMemoryError)
        or "out of memory" in words
        or "can't allocate memory" in words
    )
