"""Rule on test images that are augmented at random."""

import ast
from collections.abc import Iterator

from onsight_lint.edits import indented
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import keyword_value, last_name

_PARTS = ("torch.utils.data.random_split", "torch.utils.data.Subset")
_OTHER_RANDOM = frozenset(
    {"ColorJitter", "RandAugment", "AutoAugment", "TrivialAugmentWide", "AugMix"}
)


def _check(context: Context) -> Iterator[Mistake]:
    """Datasets that are only evaluated, with random transforms of torchvision."""
    all_scopes = context.script.scopes.values()
    if any(member.key == "transform" for scopes in all_scopes for member in scopes.members):
        return  # the transform of a dataset may be changed later
    loops, loaders = context.loader_loops, context.loaders
    seen: set[ast.AST] = {
        call for loop in loops if loop.trains for call in loaders.creations(loop.loader)
    }
    for loop in loops:
        for call in loaders.creations(loop.loader) if loop.evaluates else []:
            dataset = loaders.setting(call, "dataset")
            if call in seen or dataset is None:
                continue
            seen.add(call)
            is_part = loaders.has_sampler(loop.loader) and "train" not in last_name(loop.loader)
            if is_part or not _is_training_set(context, dataset):
                step = _random_step(context, dataset)
                if step is not None and step not in seen:
                    seen.add(step)
                    yield _mistake(context, loop.loader, step)


RULE = Rule(
    id="random-test-images",
    title="Test images are augmented at random",
    why=(
        "Each evaluation uses other random versions of the images: the result depends on chance, "
        "and does not describe the images that the network will be used on."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _is_training_set(context: Context, dataset: ast.expr) -> bool:
    """Return whether a dataset is the whole training set, evaluated with its own augmentation."""
    nodes = [origin.node for origin in context.values.origins(dataset)]
    flags = [keyword_value(node, "train") for node in nodes if isinstance(node, ast.Call)]
    is_on = any(flag is not None and context.constants.value(flag) is True for flag in flags)
    return is_on or "train" in last_name(dataset)


def _random_step(context: Context, dataset: ast.AST, depth: int = 4) -> ast.Call | None:
    """The first random transform of a dataset, or of the dataset that it is a subset of."""
    steps: list[ast.Call | None] = []
    for origin in context.values.origins(dataset) if depth else []:
        created = origin.node
        if not isinstance(created, ast.Call):
            return None
        path = context.script.path_of(created.func)
        if path in _PARTS and created.args:
            steps.append(_random_step(context, created.args[0], depth - 1))
        elif path.startswith("torchvision.datasets.") and (
            value := keyword_value(created, "transform")
        ):
            steps.append(_random_step_of_transform(context, value))
        elif path == "torchvision.datasets.ImageFolder" and len(created.args) > 1:
            steps.append(_random_step_of_transform(context, created.args[1]))
        else:
            return None
    return steps[0] if steps and None not in steps else None


def _random_step_of_transform(context: Context, transform: ast.expr) -> ast.Call | None:
    """The first random step of a transform, if it certainly has one."""
    origins = context.values.origins(transform)
    created = origins[0].node if len(origins) == 1 and not origins[0].steps else None
    if not isinstance(created, ast.Call) or last_name(created.func) != "Compose":
        return None
    composed = created.args[0] if created.args else None
    for step in composed.elts if isinstance(composed, (ast.List, ast.Tuple)) else []:
        if isinstance(step, ast.Call):
            path = context.script.path_of(step.func)
            if path.startswith("torchvision.transforms.") and _is_random(last_name(step.func)):
                return step
    return None


def _is_random(name: str) -> bool:
    return name.startswith("Random") or name in _OTHER_RANDOM


def _mistake(context: Context, loader: ast.expr, step: ast.Call) -> Mistake:
    script = context.script
    compose = script.parent(script.parent(step))
    assert isinstance(compose, ast.Call)
    assert isinstance(compose.args[0], (ast.List, ast.Tuple))
    steps = [code for item in compose.args[0].elts if (code := _fixed_step(context, item))]
    line = f"test_transform = {script.code(compose.func)}([{', '.join(steps)}])"
    fixed = indented(script, script.statement(step), line)
    problem = f"{script.code(loader)} evaluates images that {last_name(step)} changes at random"
    return Mistake(step, problem, fixed)


def _fixed_step(context: Context, step: ast.expr) -> str:
    """The code of a step for test images, without chance; "" if nothing is left of it."""
    code, name = context.script.code(step), last_name(step)
    if not isinstance(step, ast.Call) or not _is_random(name):
        return code
    owner = code[: code.index(name)]
    size = context.script.code(step.args[0]) if step.args else ""
    if name == "RandomResizedCrop" and size:
        return f"{owner}Resize({size}), {owner}CenterCrop({size})"
    is_padded = len(step.args) > 1 or keyword_value(step, "padding") is not None
    return f"{owner}CenterCrop({size})" if name == "RandomCrop" and size and not is_padded else ""
