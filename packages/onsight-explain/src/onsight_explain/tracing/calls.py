"""Outermost calls of modules: of the network, a loss, a metric."""

from collections.abc import Callable
from typing import Any

from torch import nn

from onsight_explain.tracing.patches import Patches

Around = Callable[[nn.Module, tuple[Any, ...], Callable[..., Any]], Any]

_AUGMENTATIONS = ("torchvision.transforms", "kornia.")


class RootCalls:
    """Routes every outermost call of a module through `around(module, arguments, proceed)`.

    arguments: the positional ones, then the values of the named ones; proceed: makes the call
    with the arguments that it is given, in the same order; is_skipped: whether a call is to be
    left alone, such as those inside a data set.
    """

    def __init__(self, around: Around, is_skipped: Callable[[], bool]) -> None:
        self.around, self.is_skipped = around, is_skipped
        self._inside = False

    def install(self, patches: Patches) -> None:
        """Start routing calls."""
        original = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._inside or self.is_skipped():
                return original(module, *args, **kwargs)
            self._inside = True
            try:
                if not kwargs:
                    return self.around(module, args, lambda *new: original(module, *new))
                return self._around_named(original, module, args, kwargs)
            finally:
                self._inside = False

        patches.put(nn.Module, "__call__", call)

    def _around_named(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        count = len(args)

        def proceed(*new: Any) -> Any:
            named = dict(zip(kwargs, new[count:], strict=True))
            return original(module, *new[:count], **named)

        return self.around(module, (*args, *kwargs.values()), proceed)


def kind_of(module: nn.Module) -> str:
    """network, loss, metrics or augment, by its class and whether it has parameters."""
    where = type(module).__module__
    if where.startswith("torchmetrics"):
        return "metrics"
    if where.startswith(_AUGMENTATIONS):
        return "augment"
    return "network" if next(module.parameters(), None) is not None else "loss"
