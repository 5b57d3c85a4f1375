"""Which loaders feed the steps of a Lightning module, or of a module written in its style."""

import ast
import re

from onsight_lint.facts import Facts
from onsight_lint.loops import BatchLoop
from onsight_lint.syntax import FUNCTIONS, call_owner, keyword_value

EPOCH_END = re.compile(r"(?:on_)?(train|validation|test)(?:ing)?_epoch_end$")
_LIBRARIES = ("pytorch_lightning.", "lightning.")
_PASSED = {  # calls of a Trainer that pass loaders: the position, and names of the parameter
    "train": ("fit", 1, "train_dataloaders train_dataloader"),
    "validation": ("fit", 2, "val_dataloaders"),
    "test": ("test", 1, "dataloaders test_dataloaders"),
}


def step_loaders(facts: Facts, loops: list[BatchLoop], phase: str) -> list[ast.Call]:
    """Return the calls that create the loaders of `training_step` and so on.

    phase: train, validation or test.
    """
    loaders: list[ast.expr] = []
    for function in facts.script.nodes(*FUNCTIONS):
        if function.name == f"{'val' if phase == 'validation' else phase}_dataloader":
            owner = facts.script.parent(function)
            bases = facts.values.base_paths(owner) if isinstance(owner, ast.ClassDef) else []
            if any(base.startswith(_LIBRARIES) for base in bases):
                loaders += facts.values.returns(function)
    step = "training_step" if phase == "train" else f"{phase}_step"
    looped = {loop.node: loop.loader for loop in loops}  # `model.training_step(batch)`
    for call in facts.values.calls(step):
        loaders += [looped[node] for node in facts.script.ancestors(call) if node in looped]
    method, position, names = _PASSED[phase]
    for call in facts.values.calls(method):
        if _is_trainers(facts, call):
            passed = (keyword_value(call, name) for name in names.split())
            loaders += [value for value in (*call.args[position : position + 1], *passed) if value]
    return [call for loader in loaders for call in facts.loaders.creations(loader)]


def _is_trainers(facts: Facts, call: ast.Call) -> bool:
    """Return whether a method is called on a Trainer of Lightning."""
    owner = call_owner(call) or call.func
    nodes = [origin.node for origin in facts.values.origins(owner)]
    return bool(nodes) and all(
        isinstance(node, ast.Call)
        and (path := facts.script.path_of(node.func)).startswith(_LIBRARIES)
        and path.endswith(".Trainer")
        for node in nodes
    )
