"""A file that names a network far larger than its weights is refused before memory is spent."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from onsight.errors import ModelError

_SLACK, _TIMES = 10_000_000, 2  # parameters: while it is made, a network may replace some


@contextmanager
def no_larger_than(weights: Mapping[str, Tensor], name: str) -> Iterator[None]:
    """Raise ModelError as soon as a network made meanwhile has far more parameters than weights."""
    most = _SLACK + _TIMES * sum(tensor.numel() for tensor in weights.values())
    made = 0

    def count(module: nn.Module, parameter_name: str, parameter: nn.Parameter | None) -> None:
        nonlocal made
        made += parameter.numel() if parameter is not None else 0
        if made > most:
            raise ModelError(f"the weights are not those of '{name}', which is far larger")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()
