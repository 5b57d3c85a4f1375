"""Lets the twin stand in for CUDA, so that scripts written for a GPU run on it unchanged."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from onsight_explain.simulated.device import DeviceModule
from onsight_explain.simulated.install import twin
from onsight_explain.simulated.machine import NAME, Machine
from onsight_explain.simulated.nested import changed

_DEVICE_OF, _IS_CUDA = (vars(torch._C.TensorBase)[name].__get__ for name in ("device", "is_cuda"))
_MEMORY_BYTES = 80 << 30  # as of a large GPU; what is not used is not taken from the host
_LIKE_THE_TWINS = (
    *("current_device", "set_device", "device", "stream", "current_stream", "synchronize"),
    *("empty_cache", "mem_get_info", "memory_allocated", "max_memory_allocated"),
    *("reset_peak_memory_stats", "get_device_properties"),
)


class AsCuda(TorchFunctionMode):
    """While it is on, the word cuda means the twin, wherever torch is given a device."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call one of torch's functions."""
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func == _DEVICE_OF:
            return _named_cuda(func(*args))
        if func == _IS_CUDA:
            return func(*args) or _DEVICE_OF(*args).type == NAME
        if func is Tensor.cuda:
            return _to_twin(*args, **(kwargs or {}))
        return func(*changed(_on_twin, args), **changed(_on_twin, kwargs or {}))


@contextmanager
def twin_as_cuda() -> Iterator[Machine]:
    """Within the block there is one CUDA device, which is the twin; it changes torch for good."""
    with twin() as machine:
        module: Any = getattr(torch, NAME)
        _replace(module)
        for memory in machine.memories:  # what does not fit says nothing of a GPU
            memory.limit_bytes = _MEMORY_BYTES
        with AsCuda():
            yield machine


def _on_twin(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device(NAME, value.index or 0)
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return f"{NAME}:{value.partition(':')[2] or 0}"
    return value


def _named_cuda(device: torch.device) -> torch.device:
    return torch.device("cuda", device.index) if device.type == NAME else device


def _to_twin(
    tensor: Tensor, device: Any = None, non_blocking: bool = False, **options: Any
) -> Tensor:
    index = device if isinstance(device, int) else torch.device(device or "cuda").index
    return tensor.to(torch.device(NAME, index or 0), non_blocking=non_blocking, **options)


def _replace(module: DeviceModule) -> None:
    """Make torch.cuda answer as the twin does."""
    cuda: Any = torch.cuda
    for name in _LIKE_THE_TWINS:
        setattr(cuda, name, _answering(getattr(module, name)))
    facts: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "get_device_name": "twin of the CPU",
        "get_device_capability": (8, 0),
        "is_bf16_supported": True,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "get_rng_state_all": [],
    }
    for name, value in facts.items():
        setattr(cuda, name, partial(_answer, value))
    for name in ("init", "manual_seed", "manual_seed_all", "reset_max_memory_allocated"):
        setattr(cuda, name, partial(_answer, None))
    cuda.Stream, cuda.Event = module.Stream, lambda **options: module.Event()
    cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.accelerator.is_available = lambda: True
    any_torch: Any = torch
    any_torch.compile = _not_compiled
    _load_in_this_process()


def _answer(value: Any, *args: Any, **options: Any) -> Any:
    return value


def _answering(function: Callable[..., Any]) -> Callable[..., Any]:
    """The twin's function, told of cuda devices by their twin's name."""

    def answer(*args: Any, **options: Any) -> Any:
        return function(*changed(_on_twin, args), **changed(_on_twin, options))

    return answer


def _not_compiled(model: Any = None, **options: Any) -> Any:
    """torch.compile: the model as it is, or a decorator that gives it back."""
    return (lambda function: function) if model is None else model


def _load_in_this_process() -> None:
    """Other processes and threads would not know the twin: loaders work in this one."""
    make = DataLoader.__init__
    signature = inspect.signature(make)
    alone = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "timeout": 0}

    def make_alone(*args: Any, **options: Any) -> None:
        bound = signature.bind(*args, **options)
        bound.arguments |= alone | {"multiprocessing_context": None}
        make(*bound.args, **bound.kwargs)

    loader_class: Any = DataLoader
    loader_class.__init__ = make_alone
