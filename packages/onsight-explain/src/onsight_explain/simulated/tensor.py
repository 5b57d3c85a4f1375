"""Tensors on the twin: they have a shape, a dtype and a device, and their values out of reach."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from onsight_explain.simulated.machine import NAME, Machine


class TwinTensor(torch.Tensor):
    """A tensor on the twin: `held` has its values, which no code of the host can reach."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: int, machine: Machine) -> "TwinTensor":
        """Wrap a tensor of the CPU. Raises torch.OutOfMemoryError."""
        made: TwinTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=torch.device(NAME, device),
        )
        made.held = held
        machine.hold(held, device)
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"tensor(..., device='{self.device}', shape={tuple(self.shape)})"

    def tolist(self) -> Any:
        """The values, for which the host waits."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Only with force, as of any accelerator's tensor. Raises TypeError."""
        if not force:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to "
                "copy the tensor to host memory first."
            )
        return self.detach().cpu().numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made: Tensor = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, nn.Parameter):
            made = nn.Parameter(made, self.requires_grad)
        return memo.setdefault(id(self), made)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func} reached the twin outside of its mode, as in another thread")
