"""Which loaders feed the steps of a Lightning module, or of a module written in its style."""

import ast
import re

from onsight_lint.rule import Context
from onsight_lint.syntax import FUNCTIONS, call_owner, keyword_value

EPOCH_END = re.compile(r"(?:on_)?(train|validation|test)(?:ing)?_epoch_end$")
_LIBRARIES = ("pytorch_lightning.", "lightning.")
_PASSED = {  # calls of a Trainer that pass loaders: the position, and names of the parameter
    "train": ("fit", 1, "train_dataloaders train_dataloader"),
    "validation": ("fit", 2, "val_dataloaders"),
    "test": ("test", 1, "dataloaders test_dataloaders"),
}


def step_loaders(context: Context, phase: str) -> list[ast.Call]:
    """Return the calls that create the loaders of `training_step` and so on.

    phase: train, validation or test.
    """
    script, values = context.script, context.values
    loaders: list[ast.expr] = []
    for function in script.nodes(*FUNCTIONS):
        if function.name == f"{'val' if phase == 'validation' else phase}_dataloader":
            owner = script.parent(function)
            bases = values.base_paths(owner) if isinstance(owner, ast.ClassDef) else []
            if any(base.startswith(_LIBRARIES) for base in bases):
                loaders += values.returns(function)
    looped = {loop.node: loop.loader for loop in context.loader_loops}
    for call in values.calls(step_name(phase)):  # `model.training_step(batch)`
        loaders += [looped[node] for node in script.ancestors(call) if node in looped]
    method, position, names = _PASSED[phase]
    for call in values.calls(method):
        if _is_trainers(context, call):
            passed = (keyword_value(call, name) for name in names.split())
            loaders += [value for value in (*call.args[position : position + 1], *passed) if value]
    return [call for loader in loaders for call in context.loaders.creations(loader)]


def step_name(phase: str) -> str:
    """Return the name of the method that handles the batches of a phase."""
    return "training_step" if phase == "train" else f"{phase}_step"


def _is_trainers(context: Context, call: ast.Call) -> bool:
    """Return whether a method is called on a Trainer of Lightning."""
    nodes = [origin.node for origin in context.values.origins(call_owner(call) or call.func)]
    created = [context.script.path_of(node.func) for node in nodes if isinstance(node, ast.Call)]
    return 0 < len(nodes) == len(created) and all(
        path.startswith(_LIBRARIES) and path.endswith(".Trainer") for path in created
    )
