"""Running out of memory, in torch's various error types."""

import torch


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch ran out of memory; not every device has an error type for that."""
    words = str(error)
    return (
        isinstance(error, torch.OutOfMemoryError)
        or "out of memory" in words
        or "can't allocate memory" in words
    )
