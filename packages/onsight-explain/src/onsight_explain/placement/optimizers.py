"""The tensors of optimizers: their state, and whether they update the model's own parameters."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from onsight_explain.placement.problems import Problem
from onsight_explain.placement.table import PARAMETER, STATE, Table
from onsight_explain.placement.walk import Walk, wrapped_prefix
from onsight_explain.text import listed, plural

_KEEP_STATE = "optimizer.load_state_dict(optimizer.state_dict())"  # moves it to its parameters


class Optimizers:
    """The parameters of one or several optimizers, by identity."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizers = _several(optimizer)
        self.parameters: dict[int, Tensor] = {}
        self.places: dict[int, str] = {}
        self.groups: dict[int, Mapping[str, Any]] = {}
        for one in self.optimizers:
            for number, group in enumerate(one.param_groups):
                for index, parameter in enumerate(group["params"]):
                    self.parameters[id(parameter)] = parameter
                    self.places[id(parameter)] = f'param_groups[{number}]["params"][{index}]'
                    self.groups[id(parameter)] = group

    def enter(self, table: Table, model: nn.Module | None) -> None:
        """Add the state to a table, and the parameters too if there is no model."""
        names = dict(self.places)
        if model is not None:
            prefix = wrapped_prefix(model)
            names |= {id(p): name.removeprefix(prefix) for name, p in model.named_parameters()}
        for key, parameter in self.parameters.items():
            if model is None:
                (leaf,) = Walk().tensors(parameter, names[key])
                table.add(PARAMETER, leaf._replace(fix="model = model.to(device)"))
        for one in self.optimizers:
            for parameter, state in getattr(one, "state", {}).items():
                self._enter_state(table, parameter, state, names)

    def _enter_state(self, table: Table, parameter: Any, state: Any, names: dict[int, str]) -> None:
        """Add the state of one parameter, which belongs on the same device."""
        home = str(parameter.device) if isinstance(parameter, Tensor) else None
        group = self.groups.get(id(parameter), {})
        # Only fused and capturable optimizers keep their step count on the device.
        on_device = bool(group.get("fused") or group.get("capturable"))
        for leaf in Walk().tensors(state, ""):
            name = leaf.path.removeprefix('["').replace('"]', "", 1)
            if id(parameter) in names:
                name = f"{name} of {names[id(parameter)]}"
            scalar = not on_device and leaf.tensor.ndim == 0
            entry = leaf._replace(path=name, fix=_KEEP_STATE)
            table.add(STATE, entry, home=home, may_stray=scalar)

    def compare(self, model: nn.Module, loss: Any) -> tuple[list[Problem], list[str]]:
        """Problems and notes if the model's parameters are not the ones that are updated."""
        prefix = wrapped_prefix(model)
        own = {id(parameter) for parameter in model.parameters()}
        missing = [
            name.removeprefix(prefix)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and id(parameter) not in self.parameters
        ]
        if not missing:
            return [], []
        known = own | {id(leaf.tensor) for leaf in Walk().tensors(loss, "loss")}
        names = listed(missing, 3)
        strangers = plural(len(self.parameters.keys() - known), "tensor")
        if not own & self.parameters.keys():
            what = (
                f"the optimizer updates {strangers} of something else and none of the model's: it "
                "was created for another model, or before this one was copied, moved or replaced"
            )
        elif self.parameters.keys() - known:
            what = (
                f"the optimizer updates {strangers} of something else, but not {names}: "
                "it was created before a part of the model was replaced"
            )
        else:
            alone = len(missing) == 1
            words = "requires grad but is" if alone else "require grad but are"
            never = "it never changes" if alone else "they never change"
            return [], [f"{names} {words} not in any optimizer, so {never}"]
        return [Problem(names, PARAMETER, what, self._created_again())], []

    def _created_again(self) -> str:
        """The line that creates the first optimizer again, for the model as it is now."""
        one = self.optimizers[0]
        kind = type(one)
        home = "torch.optim." if kind.__module__.startswith("torch.optim") else ""
        rate = one.param_groups[0].get("lr")
        words = f", lr={float(rate):g}" if isinstance(rate, (int, float, Tensor)) else ""
        return f"optimizer = {home}{kind.__name__}(model.parameters(){words})"


def _several(optimizer: Any) -> list[Any]:
    if isinstance(optimizer, Mapping):
        optimizers = list(optimizer.values())
    else:
        optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for one in optimizers:
        if not hasattr(one, "param_groups"):
            raise TypeError(f"optimizer is a {type(one).__name__}; it must be one of torch.optim")
    return optimizers
