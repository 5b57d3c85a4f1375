"""Rule on test images that are augmented at random."""

import ast
from collections.abc import Iterator

from onsight_lint.calls import keyword, last_name
from onsight_lint.context import Context
from onsight_lint.fix import indented
from onsight_lint.rule import Mistake, Rule
from onsight_lint.vocabulary import LOOPS

_WHY = (
    "Each evaluation sees other images: the figure depends on chance, and it is not about the "
    "images that the network will be used on."
)
_PARTS = ("torch.utils.data.random_split", "torch.utils.data.Subset")
_NAMED = frozenset({"ColorJitter", "RandAugment", "AutoAugment", "TrivialAugmentWide", "AugMix"})


def _check(context: Context) -> Iterator[Mistake]:
    """Datasets that are only evaluated, with random transforms of torchvision."""
    if any(
        one.key == "transform" for all_ in context.script.scopes.values() for one in all_.members
    ):
        return  # the transform of a part may be changed later
    loops = context.batch_loops
    trained = {call for one in loops if one.trains for call in context.loaders.made(one.loader)}
    seen: set[ast.AST] = set()
    for loop in loops:
        for call in context.loaders.made(loop.loader) if loop.evaluates else []:
            dataset = context.loaders.setting(call, "dataset")
            if call in trained or call in seen or dataset is None:
                continue
            seen.add(call)
            drawn = None if _is_training_set(context, dataset) else _random(context, dataset)
            if drawn is not None and drawn not in seen:
                seen.add(drawn)
                yield _mistake(context, loop.loader, drawn)


RULE = Rule("random-test-images", "Test images are augmented", _WHY, _check, LOOPS)


def _is_training_set(context: Context, dataset: ast.expr) -> bool:
    """Whether a dataset is all of the training images, judged as they are trained with."""
    made = [one.node for one in context.values.origins(dataset) if isinstance(one.node, ast.Call)]
    flags = [keyword(one, "train") for one in made]
    on = any(flag is not None and context.constants.fixed(flag) is True for flag in flags)
    return on or "train" in last_name(dataset)


def _random(context: Context, dataset: ast.AST, depth: int = 4) -> ast.Call | None:
    """The first random transform of a dataset, or of the one that it is a part of."""
    found: list[ast.Call | None] = []
    for origin in context.values.origins(dataset) if depth else []:
        made = origin.node
        if not isinstance(made, ast.Call):
            return None
        path = context.script.path_of(made.func)
        if path in _PARTS and made.args:
            found.append(_random(context, made.args[0], depth - 1))
        elif path.startswith("torchvision.datasets.") and (value := keyword(made, "transform")):
            found.append(_drawn(context, value))
        elif path == "torchvision.datasets.ImageFolder" and len(made.args) > 1:
            found.append(_drawn(context, made.args[1]))
        else:
            return None
    return found[0] if found and None not in found else None


def _drawn(context: Context, transform: ast.expr) -> ast.Call | None:
    """The first random step of a transform, if it certainly has one."""
    origins = context.values.origins(transform)
    made = origins[0].node if len(origins) == 1 and not origins[0].steps else None
    if not isinstance(made, ast.Call) or last_name(made.func) != "Compose" or not made.args:
        return None
    steps = made.args[0].elts if isinstance(made.args[0], (ast.List, ast.Tuple)) else []
    for step in steps:
        if isinstance(step, ast.Call):
            path = context.script.path_of(step.func)
            name = last_name(step.func)
            if path.startswith("torchvision.transforms.") and (
                name.startswith("Random") or name in _NAMED
            ):
                return step
    return None


def _mistake(context: Context, loader: ast.expr, drawn: ast.Call) -> Mistake:
    script = context.script
    compose = script.parent(script.parent(drawn))
    assert isinstance(compose, ast.Call)
    assert isinstance(compose.args[0], (ast.List, ast.Tuple))
    steps = ", ".join(filter(None, (_certain(context, one) for one in compose.args[0].elts)))
    line = f"test_transform = {script.code(compose.func)}([{steps}])"
    text = indented(script, script.source(drawn).statement(drawn), line)
    words, name = script.code(loader), last_name(drawn)
    return Mistake(drawn, f"{words} is evaluated on images that {name} changes", text)


def _certain(context: Context, step: ast.expr) -> str:
    """A step for test images: without chance; "" if nothing is left of it."""
    code, name = context.script.code(step), last_name(step)
    if not isinstance(step, ast.Call) or not (name.startswith("Random") or name in _NAMED):
        return code
    owner = code[: code.index(name)]
    size = context.script.code(step.args[0]) if step.args else ""
    if name == "RandomResizedCrop" and size:
        return f"{owner}Resize({size}), {owner}CenterCrop({size})"
    padded = len(step.args) > 1 or keyword(step, "padding") is not None
    return f"{owner}CenterCrop({size})" if name == "RandomCrop" and size and not padded else ""
