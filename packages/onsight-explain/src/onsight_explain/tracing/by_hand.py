"""Updates without torch's optimizers: other classes with a `step`, and weights changed by hand."""

from inspect import getattr_static

from torch import Tensor, nn
from torch.optim import Optimizer


class ByHand:
    """Notices that weights or their gradients have been written since the last backward pass."""

    def __init__(self) -> None:
        self.network: nn.Module | None = None
        self._weight: Tensor | None = None
        self._state: tuple[object, ...] = ()

    def begin(self) -> None:
        """A backward pass of the network has ended."""
        weights = self.network.parameters() if self.network is not None else iter(())
        self._weight = next((one for one in weights if one.grad is not None), None)
        if self._weight is not None:
            self._state = _state(self._weight)

    def is_made(self) -> bool:
        """Whether an update has been made since then; True only once."""
        if self._weight is None or _state(self._weight) == self._state:
            return False
        self._weight = None
        return True


def _state(weight: Tensor) -> tuple[object, ...]:
    """Changes whenever the weight or its gradient is written; reads no value."""
    gradient = weight.grad
    return weight._version, id(gradient), 0 if gradient is None else gradient._version


def other_optimizers() -> list[type]:
    """Every class with a `step` of its own and a `zero_grad` that is not of torch."""
    found, seen, todo = [], set[type](), [object]
    while todo:
        for kind in type.__subclasses__(todo.pop()):
            if kind in seen:
                continue
            seen.add(kind)
            todo.append(kind)
            if "step" in vars(kind) and getattr_static(kind, "zero_grad", None) is not None:
                found.append(kind)
    return [kind for kind in found if not issubclass(kind, (Optimizer, nn.Module))]
