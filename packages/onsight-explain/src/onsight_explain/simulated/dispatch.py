"""Tensors on the simulated device, and every operation on them: checked, counted, and computed."""

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

# Their result, or its shape, depends on values: Python waits for the device.
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
# They return memory, or another view of it, and launch no kernel.
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
_IS_PINNED = {_aten.is_pinned.default}


class SimulatedTensor(torch.Tensor):
    """A tensor on the simulated device.

    It has a shape, a dtype and a device. Its values are in `hidden`, a tensor of the CPU that code
    of the host cannot reach.
    """

    hidden: Tensor

    @staticmethod
    def __new__(cls, hidden: Tensor, device: int, machine: Machine) -> "SimulatedTensor":
        """Wrap a tensor of the CPU. Raises torch.OutOfMemoryError."""
        tensor: SimulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            hidden.size(),
            strides=hidden.stride(),
            storage_offset=hidden.storage_offset(),
            dtype=hidden.dtype,
            layout=hidden.layout,
            device=torch.device(DEVICE_TYPE, device),
        )
        tensor.hidden = hidden
        machine.hold(hidden, device)
        return tensor

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"tensor(..., device='{self.device}', shape={tuple(self.shape)})"

    def tolist(self) -> Any:
        """Return the values, for which the host waits."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return the values with `force`. Raises TypeError without, as for any accelerator."""
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
            f"{func} reached the simulated device outside of its mode, as in another thread"
        )


class SimulatedMode(TorchDispatchMode):
    """While it is active, tensors can be on the simulated device."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.machine = machine
        self._pinned: weakref.WeakSet[Any] = weakref.WeakSet()  # storages

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operation."""
        kwargs = dict(kwargs or {})
        tensors = [value for value in leaves((args, kwargs)) if isinstance(value, Tensor)]
        simulated = [tensor for tensor in tensors if isinstance(tensor, SimulatedTensor)]
        if func in _PIN or func in _IS_PINNED:
            return self._pin(func, args[0])
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
        self._check_devices(func, tensors, device)
        self._record_waits(func, args, simulated)
        return self._compute(func, args, kwargs, simulated, device)

    # Kinds of operations

    def _run_on_host(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_pinned = kwargs.pop("pin_memory", False)
        result = func(*args, **kwargs)
        if is_pinned:
            self._pinned.add(result.untyped_storage())
        return result

    def _compute(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        simulated: list[SimulatedTensor],
        device: int,
    ) -> Any:
        host_kwargs = {**kwargs, **({"device": _CPU} if "device" in kwargs else {})}
        host_kwargs.pop("pin_memory", None)
        written = _written(func, args, kwargs)
        computes = not (func.is_view or func in _NO_KERNEL)
        graph = self.machine.recording
        if computes and not graph:
            self.machine.record.add_launch(str(func))
            reads = [t.hidden for t in simulated if not any(t is other for other in written)]
            work = self.machine.submit(str(func), device, reads, [t.hidden for t in written])
        hidden_args, hidden_kwargs = map_leaves(_unwrap, args), map_leaves(_unwrap, host_kwargs)
        if graph:
            graph.before_operation(func, hidden_args, [t.hidden for t in written])
        result = func(*hidden_args, **hidden_kwargs)
        if graph:
            graph.after_operation(func, hidden_args, hidden_kwargs, result, computes)
        if func is _aten._local_scalar_dense.default:
            return result
        is_plain_view = func.is_view and not any(tensor.is_inference() for tensor in simulated)
        with torch.inference_mode(False) if is_plain_view else nullcontext():
            wrapped = map_leaves(lambda value: self._wrap(value, device), result)
        if computes and not graph:
            stream = self.machine.current_streams[device]
            for value in leaves(wrapped):
                if isinstance(value, SimulatedTensor):
                    self.machine.add_write(value.hidden, stream, work)
        if not simulated:
            return wrapped
        return return_and_correct_aliasing(func, args, kwargs, wrapped)

    def _copy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Copy between the host and a device; return None for a copy of another kind."""
        if func is _aten._to_copy.default:
            source, into = args[0], None
            target = torch.device(kwargs.get("device") or source.device)
            non_blocking = bool(kwargs.get("non_blocking", False))
        else:
            into, source = args[0], args[1]
            target = into.device
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
            value = torch.empty_like(_unwrap(into)).copy_(value)
        if target.type == DEVICE_TYPE:
            return self._copy_to_device(source, value, into, self._index(target), non_blocking)
        return self._copy_to_host(source, value, into, non_blocking)

    def _copy_to_device(
        self, source: Tensor, value: Tensor, into: Any, device: int, non_blocking: bool
    ) -> Tensor:
        machine = self.machine
        machine.record.add_launch("copy to the device")
        copy = SimulatedTensor(value, device, machine) if into is None else into
        work = machine.submit("a copy to the device", device, [], [copy.hidden])
        if into is not None:
            into.hidden.copy_(value)
        if self._is_pinned(source):
            if non_blocking:
                machine.read_pinned(source, device, work)
            else:
                self._wait_for_stream(device, f"copy of {tuple(source.shape)} to the device")
        else:  # CUDA copies pageable memory before the call returns, after the stream's work
            self._wait_for_stream(
                device, f"copy of {tuple(source.shape)} from memory that is not page-locked"
            )
        return copy

    def _copy_to_host(self, source: Any, value: Tensor, into: Any, non_blocking: bool) -> Any:
        machine, device = self.machine, self._index(source.device)
        machine.record.add_launch("copy to the host")
        work = machine.submit("a copy to the host", device, [source.hidden], [])
        if non_blocking:
            if into is None:
                return machine.copy_to_host(value, device, work)
            machine.copy_into_host(into, value, device, work)
            return into
        self._wait_for_stream(device, f"copy of {tuple(source.shape)} to the host")
        if into is not None:
            into.copy_(value)
        return value if into is None else into

    def _pin(self, func: Any, tensor: Tensor) -> Any:
        if func in _IS_PINNED:
            return self._is_pinned(tensor)
        pinned = tensor.clone()
        self._pinned.add(pinned.untyped_storage())
        return pinned

    # Checks and waits

    def _check_devices(self, func: Any, tensors: list[Tensor], device: int) -> None:
        expected = torch.device(DEVICE_TYPE, device)
        wrong = {
            str(tensor.device)
            for tensor in tensors
            if tensor.device != expected and not (tensor.dim() == 0 and _is_on_host(tensor))
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
        if func is _aten.where.self and any(_is_on_host(value) for value in args[1:]):
            self._wait_for_stream(device, "where() with a number, which is copied to the device")
        if func in _INDEXING and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
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


# Arguments of operations, in tuples, lists and dicts. Torch's pytrees walk them more slowly.


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
    """Return nested tuples, lists and dicts with each value replaced by the function's result."""
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
    return value.hidden if isinstance(value, SimulatedTensor) else value


def _is_on_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[SimulatedTensor]:
    """Return the tensors that an operation changes in place."""
    arguments = (
        args[place] if place < len(args) else kwargs.get(name)
        for place, name in _changed_arguments(func)
    )
    return [t for tree in arguments for t in leaves(tree) if isinstance(t, SimulatedTensor)]


@cache
def _changed_arguments(func: Any) -> list[tuple[int, str]]:
    """Return the place and name of each argument that an operation changes, by its schema."""
    return [
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
