"""Mistakes that leave a tensor on the wrong device, each with the line of code that fixes it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from onsight_explain.devices import available_devices, is_cpu_build_beside_gpu
from onsight_explain.placement.tensors import (
    BATCH,
    BUFFER,
    COPY,
    LOSS,
    METRIC,
    PARAMETER,
    STATE,
    PlacedTensor,
    TensorFinder,
    TensorRow,
    TensorTable,
    wrapper_prefix,
)
from onsight_explain.text import listed, plural

BUILD = "torch build"  # the kind of a problem with torch itself

_REASONS = {
    PARAMETER: "all parameters of a network belong on one device",
    BUFFER: "it was created or replaced after the model was moved",
    LOSS: "a loss has its own tensors, which do not move with the model",
    STATE: "the optimizer's state was created before the model was moved, or loaded elsewhere",
    METRIC: "a metric has its own tensors, which do not move with the model",
    COPY: "a copy stays on the device where it was made and does not follow the model",
    BATCH: ".to() returns a new tensor and leaves the old one where it is, so assign its result",
}
_MOVE_STATE = "optimizer.load_state_dict(optimizer.state_dict())"  # moves it to its parameters


@dataclass(frozen=True)
class PlacementProblem:
    """A mistake with the placement of tensors, and how to fix it."""

    name: str  # the tensors
    kind: str  # kind of the tensors, or BUILD
    what: str  # what is wrong, in a sentence
    fix: str  # the line of code that fixes it

    def __str__(self) -> str:
        return f"{self.what}. Write: {self.fix}"


def find_misplaced(
    entries: Iterable[PlacedTensor], home: str, has_model: bool
) -> list[PlacementProblem]:
    """Return one problem for all misplaced tensors on the same device that one line fixes."""
    groups: dict[tuple[str, ...], list[PlacedTensor]] = {}
    for entry in entries:
        if entry.is_misplaced(home):
            row = entry.row
            fix = _choose_fix(entry, home) if has_model else entry.fix
            key = (row.kind, row.device, entry.home or home, fix)
            groups.setdefault(key, []).append(entry)
    return [
        _make_problem(group, home, fix, has_model) for (_, _, home, fix), group in groups.items()
    ]


def find_cpu_build(rows: list[TensorRow]) -> list[PlacementProblem]:
    """Return a problem if everything is on the CPU because torch was built without CUDA."""
    if not _is_all_on_cpu(rows) or not is_cpu_build_beside_gpu():
        return []
    what = (
        "everything is on cpu: there is an NVIDIA driver, but this torch is a CPU-only build and "
        "cannot use the GPU"
    )
    fix = "pip install --force-reinstall torch  # built as https://pytorch.org/get-started says"
    return [PlacementProblem("torch", BUILD, what, fix)]


def note_unused_accelerator(rows: list[TensorRow]) -> list[str]:
    """Return a note if all tensors are on the CPU although there is an accelerator."""
    best = available_devices()[0] if _is_all_on_cpu(rows) else "cpu"
    return [] if best == "cpu" else [f"{best} is available, but nothing here uses it"]


class OptimizerTensors:
    """The parameters and the state of one or several optimizers."""

    def __init__(self, optimizer: Any) -> None:
        """Raises TypeError unless the object is an optimizer or a container of optimizers."""
        self.optimizers = _to_list(optimizer)
        # By the identity of each parameter.
        self.parameters: dict[int, Tensor] = {}
        self.paths: dict[int, str] = {}
        self.groups: dict[int, Mapping[str, Any]] = {}
        for optimizer in self.optimizers:
            for group_index, group in enumerate(optimizer.param_groups):
                for index, parameter in enumerate(group["params"]):
                    self.parameters[id(parameter)] = parameter
                    self.paths[id(parameter)] = f'param_groups[{group_index}]["params"][{index}]'
                    self.groups[id(parameter)] = group

    def add_to(self, table: TensorTable, model: nn.Module | None) -> None:
        """Add the state to a table, and the parameters too if there is no model."""
        names = dict(self.paths)
        if model is not None:
            prefix = wrapper_prefix(model)
            names |= {id(p): name.removeprefix(prefix) for name, p in model.named_parameters()}
        for key, parameter in self.parameters.items():
            if model is None:
                (leaf,) = TensorFinder().find(parameter, names[key])
                table.add(PARAMETER, leaf._replace(fix="model = model.to(device)"))
        for optimizer in self.optimizers:
            for parameter, state in getattr(optimizer, "state", {}).items():
                self._add_state(table, parameter, state, names)

    def compare_with(self, model: nn.Module, loss: Any) -> tuple[list[PlacementProblem], list[str]]:
        """Return problems and notes if the model's parameters are not the ones being updated."""
        prefix = wrapper_prefix(model)
        own = {id(parameter) for parameter in model.parameters()}
        missing = [
            name.removeprefix(prefix)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and id(parameter) not in self.parameters
        ]
        if not missing:
            return [], []
        known = own | {id(leaf.tensor) for leaf in TensorFinder().find(loss, "loss")}
        names = listed(missing, 3)
        other = plural(len(self.parameters.keys() - known), "tensor")
        if not own & self.parameters.keys():
            what = (
                f"the optimizer updates {other} of something else and none of the model's: it "
                "was created for another model, or before this one was copied, moved or replaced"
            )
        elif self.parameters.keys() - known:
            what = (
                f"the optimizer updates {other} of something else, but not {names}: "
                "it was created before a part of the model was replaced"
            )
        else:
            is_single = len(missing) == 1
            words = "requires grad but is" if is_single else "require grad but are"
            never = "it never changes" if is_single else "they never change"
            return [], [f"{names} {words} not in any optimizer, so {never}"]
        return [PlacementProblem(names, PARAMETER, what, self._creation_line())], []

    def _add_state(
        self, table: TensorTable, parameter: Any, state: Any, names: dict[int, str]
    ) -> None:
        """Add the state of one parameter, which belongs on the parameter's device."""
        home = str(parameter.device) if isinstance(parameter, Tensor) else None
        group = self.groups.get(id(parameter), {})
        # Only fused and capturable optimizers keep their step count on the device.
        counts_on_device = bool(group.get("fused") or group.get("capturable"))
        for leaf in TensorFinder().find(state, ""):
            name = leaf.path.removeprefix('["').replace('"]', "", 1)
            if id(parameter) in names:
                name = f"{name} of {names[id(parameter)]}"
            is_count = not counts_on_device and leaf.tensor.ndim == 0
            entry = leaf._replace(path=name, fix=_MOVE_STATE)
            table.add(STATE, entry, home=home, may_be_on_cpu=is_count)

    def _creation_line(self) -> str:
        """Return the line that creates the first optimizer again, for the model as it is now."""
        optimizer = self.optimizers[0]
        kind = type(optimizer)
        home = "torch.optim." if kind.__module__.startswith("torch.optim") else ""
        rate = optimizer.param_groups[0].get("lr")
        words = f", lr={float(rate):g}" if isinstance(rate, (int, float, Tensor)) else ""
        return f"optimizer = {home}{kind.__name__}(model.parameters(){words})"


def _choose_fix(entry: PlacedTensor, home: str) -> str:
    """Return the line that fixes it: if all but the model is on a GPU, the one that moves that."""
    is_left = home == "cpu" and not entry.holder and entry.row.kind in (LOSS, METRIC, COPY, BATCH)
    return "model = model.to(device)" if is_left else entry.fix


def _make_problem(
    group: list[PlacedTensor], home: str, fix: str, has_model: bool
) -> PlacementProblem:
    row, holder = group[0].row, group[0].holder
    name = listed([entry.row.name for entry in group], 3)
    where = f"{name} {'is' if len(group) == 1 else 'are'} on {row.device}"
    if row.kind == STATE:
        other = "its parameter is" if len(group) == 1 else "their parameters are"
    else:
        other = "the model is" if has_model else "the rest is"
        other = "the others are" if row.kind == PARAMETER else other
    what = f"{where}, but {other} on {home}: {_explain(row, holder, fix)}"
    return PlacementProblem(name, row.kind, what, fix)


def _explain(row: TensorRow, holder: str, fix: str) -> str:
    if holder and "register_buffer" in fix:
        return f"it is a plain attribute of {holder}, not a buffer, so .to() does not move it"
    if holder:
        return f"{holder} keeps it in a plain attribute, which .to() does not move"
    if fix.startswith("model =") and row.kind not in (PARAMETER, BUFFER):
        return "the model was not moved"
    return _REASONS[row.kind]


def _is_all_on_cpu(rows: list[TensorRow]) -> bool:
    return bool(rows) and all(row.device == "cpu" for row in rows)


def _to_list(optimizer: Any) -> list[Any]:
    if isinstance(optimizer, Mapping):
        optimizers = list(optimizer.values())
    else:
        optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for candidate in optimizers:
        if not hasattr(candidate, "param_groups"):
            raise TypeError(
                f"optimizer is a {type(candidate).__name__}; it must be one of torch.optim"
            )
    return optimizers
