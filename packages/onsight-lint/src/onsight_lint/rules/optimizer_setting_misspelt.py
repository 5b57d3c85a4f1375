"""Rule on settings of an optimizer's parameter groups under names that it does not read."""

import ast
import difflib
from collections.abc import Iterator

from onsight_lint.edits import replace_node, show_changed
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.scopes import EACH
from onsight_lint.syntax import keyword_value

_SETTINGS = ("lr", "weight_decay", "momentum", "betas", "eps", "nesterov", "amsgrad", "dampening")
_OTHER_NAMES = {"learning_rate": "lr", "wd": "weight_decay", "weight_decay_rate": "weight_decay"}
_ADAMW = ("transformers.AdamW", "transformers.optimization.AdamW")  # as lenient as torch's


def _check(context: Context) -> Iterator[Mistake]:
    """`{"params": ..., "weight_decay_rate": 0.01}` in a list of groups."""
    keys: dict[ast.Constant, str] = {}  # of all groups, with what they should be
    for call in context.script.nodes(ast.Call):
        path = context.script.path_of(call.func)
        if path.startswith("torch.optim.") or path in _ADAMW:
            groups = call.args[0] if call.args else keyword_value(call, "params")
            for origin in context.values.origins(groups, (EACH,)) if groups else ():
                if isinstance(origin.node, ast.Dict) and not origin.steps:
                    for key in origin.node.keys:
                        if isinstance(key, ast.Constant) and isinstance(key.value, str):
                            keys[key] = _meant(key.value)
    others = {node.value for node in context.script.nodes(ast.Constant) if node not in keys}
    for key, name in keys.items():
        if name and key.value not in others:  # else the script itself reads it
            change = replace_node(context.script, key, f'"{name}"')
            problem = f"{key.value!s} is no setting of torch's optimizers: it is called {name}"
            yield Mistake(key, problem, show_changed(context.script, key, [change]))


RULE = Rule(
    id="optimizer-setting-misspelt",
    title="A setting that the optimizer ignores",
    why=(
        "An optimizer accepts any key in a parameter group but reads only those it knows, so "
        "these parameters are trained with the default instead."
    ),
    check=_check,
    pattern="""["']params["']""",
)


def _meant(name: str) -> str:
    """Return the setting that a name was meant for; "" if it is one, or something else."""
    if name in _SETTINGS:
        return ""
    near = difflib.get_close_matches(name, _SETTINGS, n=1, cutoff=0.9)
    return _OTHER_NAMES.get(name, near[0] if near else "")
