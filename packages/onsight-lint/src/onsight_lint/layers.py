"""Whether a network may have layers that behave differently in training: dropout, batch norm."""

import ast
import re

from onsight_lint.calls import last_name
from onsight_lint.facts import Facts
from onsight_lint.source import FUNCTIONS
from onsight_lint.values import Origin

_CHANGING = re.compile(
    r"BatchNorm|batch_norm|[Dd]ropout|DropPath|drop_path|StochasticDepth|stochastic_depth"
    r"|Transformer(En|De)coder|torch\.nn\.Transformer$"
)
_LIBRARIES = ("torchvision.models", "timm.", "torch.hub.", "transformers.")


def changes_by_mode(facts: Facts, network: ast.expr) -> bool:
    """Whether `.eval()` may matter: not if all layers are known and none depends on the mode."""
    origins = facts.values.origins(network)
    return any(_may_change(facts, origin) for origin in origins)


def _may_change(facts: Facts, origin: Origin) -> bool:
    node = origin.node
    if not isinstance(node, ast.Call):
        return True  # an argument or an attribute whose creation is not visible
    path = facts.script.path_of(node.func)
    if facts.script.definition(node.func) is not None:
        return _holds(facts, node)
    if path.startswith("torch.nn."):
        spread = any(isinstance(one, (ast.Starred, ast.Name)) for one in node.args)
        return _holds(facts, facts.script.function(node) if spread else node)
    return path != "torch.jit.load"


def _holds(facts: Facts, node: ast.AST) -> bool:
    """Whether code names such a layer, or a class or function of these files that does."""
    seen: set[ast.AST] = set()
    waiting = [node]
    while waiting:
        code = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        for one in ast.walk(code):
            if isinstance(one, ast.keyword) and one.arg == "dropout" and _positive(one.value):
                return True
            if isinstance(one, (ast.Name, ast.Attribute)):
                path = facts.script.path_of(one) or last_name(one)
                if _CHANGING.search(path) or path.startswith(_LIBRARIES):
                    return True
                defined = facts.script.definition(one)
                if isinstance(defined, (*FUNCTIONS, ast.ClassDef)):
                    waiting.append(defined)
    return False


def _positive(value: ast.expr) -> bool:
    return not (isinstance(value, ast.Constant) and not value.value)
