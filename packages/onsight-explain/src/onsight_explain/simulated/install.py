"""Registers the twin with torch, for the rest of the process: tests run it in one of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from onsight_explain.simulated.device import DeviceModule, TwinEvent
from onsight_explain.simulated.dispatch import TwinMode
from onsight_explain.simulated.machine import NAME, Machine

_machine: Machine | None = None


def install() -> Machine:
    """Register the twin; the same machine each time."""
    global _machine
    if _machine is None:
        _machine = Machine()
        _register(_machine)
    return _machine


def _register(machine: Machine) -> None:
    module = DeviceModule(machine)
    _setup_privateuseone_for_python_backend(NAME, backend_module=module)
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.autograd.set_multithreading_enabled(False)  # its thread would not know the mode
    _replace_accelerator(machine, module)
    _replace_backward(machine)


def _replace_accelerator(machine: Machine, module: DeviceModule) -> None:
    """torch.accelerator asks the C++ part of a backend, which the twin does not have."""
    accelerator: Any = torch.accelerator
    accelerator.synchronize = module.synchronize
    accelerator.current_device_index = module.current_device
    accelerator.set_device_index = module.set_device
    accelerator.current_stream = module.current_stream
    accelerator.empty_cache = module.empty_cache
    any_torch: Any = torch

    class GenericEvent(TwinEvent):
        """torch.Event on the twin."""

        def __init__(self, device: Any = None, enable_timing: bool = False) -> None:
            super().__init__(machine, device)

    any_torch.Event = GenericEvent
    any_tensor: Any = torch.Tensor  # its method takes nothing but a torch.Stream
    any_tensor.record_stream = lambda tensor, stream: machine.keep_for(tensor.held, stream.number)


def _replace_backward(machine: Machine) -> None:
    autograd: Any = torch.autograd
    run_backward = autograd._engine_run_backward

    def run(*args: Any, **kwargs: Any) -> Any:
        made = run_backward(*args, **kwargs)
        machine.raise_late()
        return made

    autograd._engine_run_backward = run


@contextmanager
def twin() -> Iterator[Machine]:
    """Within the block, torch has the devices twin:0 and twin:1."""
    machine = install()
    with TwinMode(machine):
        yield machine
