"""Register the simulated device with torch, under its own name or in place of CUDA.

Registering changes torch for the rest of the process, so tests run it in a separate process.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch.utils.data import DataLoader

from onsight_explain.simulated.device import DEVICE_NAME, DeviceModule, SimulatedEvent
from onsight_explain.simulated.dispatch import SimulatedMode, map_leaves
from onsight_explain.simulated.machine import DEVICE_TYPE, Machine

_CUDA_MEMORY_BYTES = 80 << 30  # as on a large GPU; only memory in use is allocated on the host
_SHARED_WITH_CUDA = (
    *("current_device", "set_device", "device", "stream", "current_stream", "synchronize"),
    *("empty_cache", "mem_get_info", "memory_allocated", "max_memory_allocated"),
    *("reset_peak_memory_stats", "get_device_properties"),
)

_machine: Machine | None = None
_get_device, _get_is_cuda = (
    vars(torch._C.TensorBase)[name].__get__ for name in ("device", "is_cuda")
)


def install() -> Machine:
    """Register the device and return its machine. Later calls return the same machine."""
    global _machine
    if _machine is None:
        _machine = Machine()
        _register(_machine)
    return _machine


@contextmanager
def simulated_device() -> Iterator[Machine]:
    """Let torch use the devices simulated:0 and simulated:1 within a block."""
    machine = install()
    with SimulatedMode(machine):
        yield machine


@contextmanager
def simulated_cuda() -> Iterator[Machine]:
    """Let one simulated device stand in for CUDA, so that scripts for a GPU run unchanged.

    torch.cuda stays replaced after the block.
    """
    with simulated_device() as machine:
        _replace_cuda(getattr(torch, DEVICE_TYPE))
        for memory in machine.memories:  # the default limit is for small tests only
            memory.limit_bytes = _CUDA_MEMORY_BYTES
        with _CudaNames():
            yield machine


# Registration


def _register(machine: Machine) -> None:
    module = DeviceModule(machine)
    _setup_privateuseone_for_python_backend(DEVICE_TYPE, backend_module=module)
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.autograd.set_multithreading_enabled(False)  # modes are not active in other threads
    _replace_accelerator(machine, module)
    _replace_backward(machine)


def _replace_accelerator(machine: Machine, module: DeviceModule) -> None:
    """Replace functions of torch.accelerator that need a backend written in C++."""
    accelerator: Any = torch.accelerator
    accelerator.synchronize = module.synchronize
    accelerator.current_device_index = module.current_device
    accelerator.set_device_index = module.set_device
    accelerator.current_stream = module.current_stream
    accelerator.empty_cache = module.empty_cache
    any_torch: Any = torch

    class GenericEvent(SimulatedEvent):
        """torch.Event on the simulated device."""

        def __init__(self, device: Any = None, enable_timing: bool = False) -> None:
            super().__init__(machine)  # like torch's, it ignores the device's index

    any_torch.Event = GenericEvent
    any_tensor: Any = torch.Tensor  # torch's method accepts only a torch.Stream
    any_tensor.record_stream = lambda tensor, stream: machine.keep_for(
        tensor.cpu_tensor, stream.number
    )


def _replace_backward(machine: Machine) -> None:
    autograd: Any = torch.autograd
    original = autograd._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        machine.raise_error_in_backward()
        return result

    autograd._engine_run_backward = run_backward


# Replacing CUDA


class _CudaNames(TorchFunctionMode):
    """Let `cuda` name the simulated device wherever torch accepts a device."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a torch function with devices renamed."""
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func == _get_device:
            return _rename_to_cuda(func(*args))
        if func == _get_is_cuda:
            return func(*args) or _get_device(*args).type == DEVICE_TYPE
        if func is Tensor.cuda:
            return _tensor_cuda(*args, **(kwargs or {}))
        return _accepting_cuda_names(func)(*args, **(kwargs or {}))


def _rename_from_cuda(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device(DEVICE_TYPE, value.index or 0)
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return f"{DEVICE_TYPE}:{value.partition(':')[2] or 0}"
    return value


def _rename_to_cuda(device: torch.device) -> torch.device:
    return torch.device("cuda", device.index) if device.type == DEVICE_TYPE else device


def _tensor_cuda(
    tensor: Tensor, device: Any = None, non_blocking: bool = False, **options: Any
) -> Tensor:
    """Stand in for Tensor.cuda."""
    index = device if isinstance(device, int) else torch.device(device or "cuda").index
    return tensor.to(torch.device(DEVICE_TYPE, index or 0), non_blocking=non_blocking, **options)


def _replace_cuda(module: DeviceModule) -> None:
    """Replace the functions of torch.cuda by those of the simulated device."""
    cuda: Any = torch.cuda
    for name in _SHARED_WITH_CUDA:
        setattr(cuda, name, _accepting_cuda_names(getattr(module, name)))
    results: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "get_device_name": DEVICE_NAME,
        "get_device_capability": (8, 0),
        "is_bf16_supported": True,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "get_rng_state_all": [],
    }
    for name, result in results.items():
        setattr(cuda, name, partial(_return, result))
    for name in ("init", "manual_seed", "manual_seed_all", "reset_max_memory_allocated"):
        setattr(cuda, name, partial(_return, None))
    cuda.Stream, cuda.Event = module.Stream, lambda **options: module.Event()
    cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.accelerator.is_available = lambda: True
    any_torch: Any = torch
    any_torch.compile = _skip_compiling
    _load_in_this_process()


def _return(value: Any, *args: Any, **options: Any) -> Any:
    return value


def _accepting_cuda_names(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that `cuda` in its arguments names the simulated device."""

    def wrapped(*args: Any, **options: Any) -> Any:
        return function(
            *map_leaves(_rename_from_cuda, args), **map_leaves(_rename_from_cuda, options)
        )

    return wrapped


def _skip_compiling(model: Any = None, **options: Any) -> Any:
    """Stand in for torch.compile: return the model, or a decorator, unchanged."""
    return (lambda function: function) if model is None else model


def _load_in_this_process() -> None:
    """Make every DataLoader load in this process, because the device exists in no other."""
    original = DataLoader.__init__
    signature = inspect.signature(original)

    def init_without_workers(*args: Any, **options: Any) -> None:
        bound = signature.bind(*args, **options)
        bound.arguments |= {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}
        bound.arguments |= {"timeout": 0, "multiprocessing_context": None}
        original(*bound.args, **bound.kwargs)

    loader_class: Any = DataLoader
    loader_class.__init__ = init_without_workers
