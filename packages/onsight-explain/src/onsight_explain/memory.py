"""Running out of memory, in torch's various error types."""

import torch

from onsight_explain.accelerator import module_of

_WORDS = (
    "out of memory",
    "can't allocate memory",
    # What CUDA's libraries say when there is no room for their workspace.
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "unable to find an engine to execute this computation",
)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch ran out of memory; not every device has an error type for that."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    said = str(error)
    return any(words in said for words in _WORDS)


def free_kept_memory(device: torch.device) -> None:
    """Free the memory of an accelerator that torch keeps for later, in pieces of other sizes."""
    # torch.accelerator.empty_cache asserts on Apple's GPUs in torch 2.9.
    if device.type != "cpu":
        module_of(device).empty_cache()
