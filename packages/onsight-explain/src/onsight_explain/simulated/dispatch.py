"""Tensors on the simulated device, and a dispatch mode that checks and runs their operations."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from onsight_explain.simulated.machine import DEVICE_TYPE, Machine, user_line

_aten = torch.ops.aten
_CPU = torch.device("cpu")

# The host waits for these operations: their result, or its shape, depends on a tensor's values.
_NEED_VALUES = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.bincount.default,
    _aten.equal.default,
    _aten.is_nonzero.default,
    _aten._unique2.default,
    _aten.repeat_interleave.Tensor,
}
# These operations only allocate memory or return the same memory, so they launch no kernel.
_NO_KERNEL = {
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
    _aten.detach.default,
    _aten.alias.default,
}
_INDEXING = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}
_COPIES = {_aten._to_copy.default, _aten.copy_.default}
_PIN = {_aten._pin_memory.default, _aten.pin_memory.default}


class SimulatedTensor(torch.Tensor):
    """A tensor on the simulated device, without storage of its own: a CPU tensor has the values."""

    cpu_tensor: Tensor  # a script cannot reach it

    @staticmethod
    def __new__(cls, cpu_tensor: Tensor, device: int, machine: Machine) -> "SimulatedTensor":
        """Wrap a CPU tensor. Raises torch.OutOfMemoryError."""
        tensor: SimulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            cpu_tensor.size(),
            strides=cpu_tensor.stride(),
            storage_offset=cpu_tensor.storage_offset(),
            dtype=cpu_tensor.dtype,
            layout=cpu_tensor.layout,
            device=torch.device(DEVICE_TYPE, device),
        )
        tensor.cpu_tensor = cpu_tensor
        machine.track_memory(cpu_tensor, device)
        return tensor

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"tensor(..., device='{self.device}', shape={tuple(self.shape)})"

    def tolist(self) -> Any:
        """Return the values. The host waits for the device."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return the values if `force` is true. Otherwise raise TypeError, as CUDA tensors do."""
        if not force:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to "
                "copy the tensor to host memory first."
            )
        return self.detach().cpu().numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copy: Tensor = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, nn.Parameter):
            copy = nn.Parameter(copy, self.requires_grad)
        return memo.setdefault(id(self), copy)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(
            f"{func} was called on a simulated tensor while SimulatedMode was not active, as in "
            "another thread"
        )


class SimulatedMode(TorchDispatchMode):
    """Allow tensors on the simulated device while the mode is active."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.machine = machine
        self._pinned: weakref.WeakSet[Any] = weakref.WeakSet()  # page-locked storages

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation on the host or on the simulated device."""
        kwargs = dict(kwargs or {})
        tensors = [value for value in leaves((args, kwargs)) if isinstance(value, Tensor)]
        simulated = [tensor for tensor in tensors if isinstance(tensor, SimulatedTensor)]
        if func is _aten.is_pinned.default:
            return self._is_pinned(args[0])
        if func in _PIN:
            return self._pin(args[0])
        if func in _COPIES and (copy := self._copy(func, args, kwargs)) is not None:
            return copy
        requested = kwargs.get("device")
        if requested is None:
            requested = simulated[0].device if simulated else _CPU
        target = torch.device(requested)
        if target.type != DEVICE_TYPE and not simulated:
            return self._run_on_host(func, args, kwargs)
        if _is_composite(func):  # under inference_mode torch does not decompose it
            with self:
                return func.decompose(*args, **kwargs)
        device = self._index(target if target.type == DEVICE_TYPE else simulated[0].device)
        self._check_devices(func, args, tensors, device)
        self._record_waits(func, args, simulated)
        return self._run_on_device(func, args, kwargs, simulated, device)

    # Running operations

    def _run_on_host(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        pin_memory = kwargs.pop("pin_memory", False)
        result = func(*args, **kwargs)
        if pin_memory:
            self._pinned.add(result.untyped_storage())
        return result

    def _run_on_device(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        simulated: list[SimulatedTensor],
        device: int,
    ) -> Any:
        cpu_kwargs = {**kwargs, **({"device": _CPU} if "device" in kwargs else {})}
        if cpu_kwargs.pop("pin_memory", False):
            raise RuntimeError("Only dense CPU tensors can be pinned")
        written = _written_tensors(func, args, kwargs)
        launches_kernel = not (func.is_view or func in _NO_KERNEL)
        graph = self.machine.recording
        if launches_kernel and not graph:
            self.machine.record.launches[str(func)] += 1
            reads = [t.cpu_tensor for t in simulated if not any(t is other for other in written)]
            work = self.machine.submit(str(func), device, reads, [t.cpu_tensor for t in written])
        cpu_args, cpu_kwargs = map_leaves(_unwrap, args), map_leaves(_unwrap, cpu_kwargs)
        if graph:
            graph.before_operation(func, cpu_args, [t.cpu_tensor for t in written])
        result = func(*cpu_args, **cpu_kwargs)
        if graph:
            graph.after_operation(func, cpu_args, cpu_kwargs, result, launches_kernel)
        if func is _aten._local_scalar_dense.default:
            return result
        # A view of a normal tensor is a normal tensor, even within inference_mode.
        is_normal_view = func.is_view and not any(tensor.is_inference() for tensor in simulated)
        with torch.inference_mode(False) if is_normal_view else nullcontext():
            wrapped = map_leaves(lambda value: self._wrap(value, device), result)
        if launches_kernel and not graph:
            stream = self.machine.current_streams[device]
            for value in leaves(wrapped):
                if isinstance(value, SimulatedTensor):
                    self.machine.add_write(value.cpu_tensor, stream, work)
        if not simulated:
            return wrapped
        return return_and_correct_aliasing(func, args, kwargs, wrapped)

    def _copy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Copy between the host and a device; return None for a copy within either."""
        if func is _aten._to_copy.default:
            source, destination = args[0], None
            target = torch.device(kwargs.get("device") or source.device)
            non_blocking = bool(kwargs.get("non_blocking", False))
        else:
            destination, source = args[0], args[1]
            target = destination.device
            non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        origin = source.device
        if target.type != DEVICE_TYPE and origin.type != DEVICE_TYPE:
            return None
        if target.type == origin.type and self._index(target) == self._index(origin):
            return None
        if origin.type == DEVICE_TYPE and target.type == DEVICE_TYPE:
            raise RuntimeError("the simulated device does not copy between its devices")
        options = {name: kwargs[name] for name in kwargs.keys() - {"device", "non_blocking"}}
        self.machine.refuse_while_recording("a copy between the host and the device")
        value = _unwrap(source)
        if func is _aten._to_copy.default:
            value = _aten._to_copy.default(value, **options)
        else:
            value = torch.empty_like(_unwrap(destination)).copy_(value)
        if target.type == DEVICE_TYPE:
            index = self._index(target)
            return self._copy_to_device(source, value, destination, index, non_blocking)
        return self._copy_to_host(source, value, destination, non_blocking)

    def _copy_to_device(
        self, source: Tensor, value: Tensor, destination: Any, device: int, non_blocking: bool
    ) -> Tensor:
        machine = self.machine
        machine.record.launches["copy to the device"] += 1
        copy = SimulatedTensor(value, device, machine) if destination is None else destination
        work = machine.submit("a copy to the device", device, [], [copy.cpu_tensor])
        if destination is not None:
            destination.cpu_tensor.copy_(value)
        if self._is_pinned(source):
            if non_blocking:
                machine.read_pinned(source, device, work)
            else:
                self._wait_for_stream(device, f"copy of {tuple(source.shape)} to the device")
        else:  # as in CUDA: the call returns only after the stream's earlier work and the copy
            self._wait_for_stream(
                device, f"copy of {tuple(source.shape)} from memory that is not page-locked"
            )
        return copy

    def _copy_to_host(
        self, source: Any, value: Tensor, destination: Any, non_blocking: bool
    ) -> Any:
        machine, device = self.machine, self._index(source.device)
        machine.record.launches["copy to the host"] += 1
        work = machine.submit("a copy to the host", device, [source.cpu_tensor], [])
        if non_blocking:
            target = torch.empty_like(value) if destination is None else destination
            machine.copy_to_host(target, value, device, work)
            return target
        self._wait_for_stream(device, f"copy of {tuple(source.shape)} to the host")
        return value if destination is None else destination.copy_(value)

    def _pin(self, tensor: Tensor) -> Tensor:
        if not _is_on_cpu(tensor):
            raise RuntimeError(f"cannot pin {tensor!r}: only dense CPU tensors can be pinned")
        pinned = tensor.clone()
        self._pinned.add(pinned.untyped_storage())
        return pinned

    # Checks and waits

    def _check_devices(
        self, func: Any, args: tuple[Any, ...], tensors: list[Tensor], device: int
    ) -> None:
        """Raise RuntimeError for tensors on other devices, as CUDA does.

        Single numbers and indices may be on the CPU.
        """
        expected = torch.device(DEVICE_TYPE, device)
        indices = args[1] if func in _INDEXING else []
        wrong = {
            str(tensor.device)
            for tensor in tensors
            if tensor.device != expected
            and not (
                _is_on_cpu(tensor)
                and (tensor.dim() == 0 or any(tensor is index for index in indices))
            )
        }
        if wrong:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{expected} and {', '.join(sorted(wrong))}! (in {func}, {user_line()})"
            )

    def _record_waits(
        self, func: Any, args: tuple[Any, ...], simulated: list[SimulatedTensor]
    ) -> None:
        if not simulated:
            return
        device = self._index(simulated[0].device)
        if func in _NEED_VALUES:
            self._wait_for_stream(device, str(func))
        if func is _aten.where.self and any(_is_on_cpu(value) for value in args[1:]):
            self._wait_for_stream(device, "where() with a number, which is copied to the device")
        indices = [index for index in args[1] if index is not None] if func in _INDEXING else []
        if any(_is_on_cpu(index) for index in indices):
            self._wait_for_stream(device, f"{func}, which copies its indices to the device")
        elif any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            self._wait_for_stream(device, f"{func} by a mask")

    def _wait_for_stream(self, device: int, cause: str) -> None:
        stream = self.machine.current_streams[device]
        self.machine.host_waits(self.machine.snapshot(stream), cause)

    def _is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage() in self._pinned

    def _index(self, device: torch.device) -> int:
        return self.machine.current_device if device.index is None else device.index

    def _wrap(self, value: Any, device: int) -> Any:
        if isinstance(value, Tensor) and not isinstance(value, SimulatedTensor):
            return SimulatedTensor(value, device, self.machine)
        return value


# Nested arguments of operations. These two functions are faster than torch's pytrees.


def leaves(tree: Any) -> list[Any]:
    """Return all values in nested tuples, lists and dicts."""
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (tuple, list)):
        return [tree]
    values = []
    for value in tree:
        if isinstance(value, (tuple, list, dict)):
            values += leaves(value)
        else:
            values.append(value)
    return values


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to each value in nested tuples, lists and dicts."""
    if isinstance(tree, (tuple, list)):
        return type(tree)([map_leaves(function, value) for value in tree])
    if isinstance(tree, dict):
        return {name: map_leaves(function, value) for name, value in tree.items()}
    return function(tree)


@cache
def _is_composite(func: Any) -> bool:
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    )


def _unwrap(value: Any) -> Any:
    return value.cpu_tensor if isinstance(value, SimulatedTensor) else value


def _is_on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _written_tensors(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[SimulatedTensor]:
    """Return the tensors that an operation writes to in place."""
    arguments = (
        args[index] if index < len(args) else kwargs.get(name)
        for index, name in _written_arguments(func)
    )
    return [t for tree in arguments for t in leaves(tree) if isinstance(t, SimulatedTensor)]


@cache
def _written_arguments(func: Any) -> list[tuple[int, str]]:
    """Return the index and name of each argument that an operation's schema marks as written."""
    return [
        (index, argument.name)
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
