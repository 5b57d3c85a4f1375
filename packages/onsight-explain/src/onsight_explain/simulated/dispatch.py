"""Every operation of torch on the twin's tensors: checked, counted, and computed by the CPU."""

import weakref
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from onsight_explain.simulated.machine import NAME, Machine
from onsight_explain.simulated.nested import changed, leaves
from onsight_explain.simulated.record import user_line
from onsight_explain.simulated.tensor import TwinTensor

_aten = torch.ops.aten
_CPU = torch.device("cpu")
_NEEDS_THE_VALUE = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.bincount.default,
    _aten.equal.default,
    _aten.is_nonzero.default,
    _aten._unique2.default,
    _aten.repeat_interleave.Tensor,
}
_NO_KERNEL = {  # they give memory, or another name for it
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
    _aten.detach.default,
    _aten.alias.default,
}
_INDEXED = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}
_COPIES = {_aten._to_copy.default, _aten.copy_.default}
_PIN = {_aten._pin_memory.default, _aten.pin_memory.default}
_PINNED = {_aten.is_pinned.default}


class TwinMode(TorchDispatchMode):
    """While it is on, tensors can be on the twin."""

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
        tensors = [one for one in leaves((args, kwargs)) if isinstance(one, Tensor)]
        twins = [one for one in tensors if isinstance(one, TwinTensor)]
        if func in _PIN or func in _PINNED:
            return self._pin(func, args[0])
        if func in _COPIES and (moved := self._copy(func, args, kwargs)) is not None:
            return moved
        asked = kwargs.get("device")
        target = asked if asked is not None else (twins[0].device if twins else _CPU)
        target = torch.device(target)
        if target.type != NAME and not twins:
            return self._on_host(func, args, kwargs)
        if _is_composite(func):  # under inference_mode nothing took it apart
            with self:
                return func.decompose(*args, **kwargs)
        device = self._index(target if target.type == NAME else twins[0].device)
        self._check_devices(func, tensors, device)
        self._note_waits(func, args, twins)
        return self._compute(func, args, kwargs, twins, device)

    # kinds of operations

    def _on_host(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_pinned = kwargs.pop("pin_memory", False)
        made = func(*args, **kwargs)
        if is_pinned:
            self._pinned.add(made.untyped_storage())
        return made

    def _compute(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        twins: list[TwinTensor],
        device: int,
    ) -> Any:
        plain = {**kwargs, **({"device": _CPU} if "device" in kwargs else {})}
        plain.pop("pin_memory", None)
        written = _written(func, args, kwargs)
        computes = not (func.is_view or func in _NO_KERNEL)
        graph = self.machine.recording
        if computes and not graph:
            self.machine.record.launch(str(func))
            reads = [one.held for one in twins if not any(one is other for other in written)]
            work = self.machine.work(str(func), device, reads, [one.held for one in written])
        held_args, held_kwargs = changed(_held, args), changed(_held, plain)
        if graph:
            graph.begins(func, held_args, [one.held for one in written])
        made = func(*held_args, **held_kwargs)
        if graph:
            graph.ended(func, held_args, held_kwargs, made, computes)
        if func is _aten._local_scalar_dense.default:
            return made
        is_plain_view = func.is_view and not any(one.is_inference() for one in twins)
        with torch.inference_mode(False) if is_plain_view else nullcontext():
            wrapped = changed(lambda one: self._wrap(one, device), made)
        if computes and not graph:
            stream = self.machine.current_streams[device]
            for one in leaves(wrapped):
                if isinstance(one, TwinTensor):
                    self.machine.wrote(one.held, stream, work)
        if not twins:
            return wrapped
        return return_and_correct_aliasing(func, args, kwargs, wrapped)

    def _copy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A copy between host and twin, or between twins; None if it is of another kind."""
        if func is _aten._to_copy.default:
            source, into = args[0], None
            to = torch.device(kwargs.get("device") or source.device)
            no_wait = bool(kwargs.get("non_blocking", False))
        else:
            into, source = args[0], args[1]
            to = into.device
            no_wait = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        of = source.device
        if to.type != NAME and of.type != NAME:
            return None
        if to.type == of.type and self._index(to) == self._index(of):
            return None
        if of.type == NAME and to.type == NAME:
            raise RuntimeError("the twin does not copy between its devices")
        how = {name: kwargs[name] for name in kwargs.keys() - {"device", "non_blocking"}}
        self.machine.refuse_while_recording("a copy between the host and the device")
        value = _held(source)
        if func is _aten._to_copy.default:
            value = _aten._to_copy.default(value, **how)
        else:
            value = torch.empty_like(_held(into)).copy_(value)
        if to.type == NAME:
            return self._to_twin(source, value, into, self._index(to), no_wait)
        return self._to_host(source, value, into, no_wait)

    def _to_twin(
        self, source: Tensor, value: Tensor, into: Any, device: int, no_wait: bool
    ) -> Tensor:
        machine = self.machine
        machine.record.launch("copy to the device")
        made = TwinTensor(value, device, machine) if into is None else into
        work = machine.work("a copy to the device", device, [], [made.held])
        if into is not None:
            into.held.copy_(value)
        if self._is_pinned(source):
            if no_wait:
                machine.read_pinned(source, device, work)
            else:
                self._wait_for_stream(device, f"copy of {tuple(source.shape)} to the device")
        else:  # CUDA copies pageable memory before the call returns, after the stream's work
            self._wait_for_stream(
                device, f"copy of {tuple(source.shape)} from memory that is not page-locked"
            )
        return made

    def _to_host(self, source: Any, value: Tensor, into: Any, no_wait: bool) -> Any:
        machine, device = self.machine, self._index(source.device)
        machine.record.launch("copy to the host")
        work = machine.work("a copy to the host", device, [source.held], [])
        if no_wait:
            if into is None:
                return machine.copy_to_host(value, device, work)
            machine.copy_into_host(into, value, device, work)
            return into
        self._wait_for_stream(device, f"copy of {tuple(source.shape)} to the host")
        if into is not None:
            into.copy_(value)
        return value if into is None else into

    def _pin(self, func: Any, tensor: Tensor) -> Any:
        if func in _PINNED:
            return self._is_pinned(tensor)
        made = tensor.clone()
        self._pinned.add(made.untyped_storage())
        return made

    # helpers

    def _is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage() in self._pinned

    def _index(self, device: torch.device) -> int:
        return self.machine.current_device if device.index is None else device.index

    def _wrap(self, made: Any, device: int) -> Any:
        if isinstance(made, Tensor) and not isinstance(made, TwinTensor):
            return TwinTensor(made, device, self.machine)
        return made

    def _wait_for_stream(self, device: int, cause: str) -> None:
        stream = self.machine.current_streams[device]
        self.machine.host_waits(self.machine.snapshot(stream), cause)

    def _check_devices(self, func: Any, tensors: list[Tensor], device: int) -> None:
        wrong = {
            str(one.device)
            for one in tensors
            if one.device != torch.device(NAME, device) and not (one.dim() == 0 and _is_host(one))
        }
        if wrong:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{NAME}:{device} and {', '.join(sorted(wrong))}! (in {func}, {user_line()})"
            )

    def _note_waits(self, func: Any, args: tuple[Any, ...], twins: list[TwinTensor]) -> None:
        if not twins:
            return
        device = self._index(twins[0].device)
        if func in _NEEDS_THE_VALUE:
            self._wait_for_stream(device, str(func))
        if func is _aten.where.self and any(_is_host(one) for one in args[1:]):
            self._wait_for_stream(device, "where() with a number, which is copied to the device")
        if func in _INDEXED and any(
            one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1]
        ):
            self._wait_for_stream(device, f"{func} by a mask")


@cache
def _is_composite(func: Any) -> bool:
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    )


def _held(one: Any) -> Any:
    return one.held if isinstance(one, TwinTensor) else one


def _is_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[TwinTensor]:
    """The tensors that an operation changes in place."""
    given = (
        args[place] if place < len(args) else kwargs.get(name) for place, name in _changes(func)
    )
    return [one for tree in given for one in leaves(tree) if isinstance(one, TwinTensor)]


@cache
def _changes(func: Any) -> list[tuple[int, str]]:
    """The arguments, by place and name, that an operation changes, by its schema."""
    arguments = enumerate(func._schema.arguments)
    return [
        (place, one.name)
        for place, one in arguments
        if one.alias_info is not None and one.alias_info.is_write
    ]
