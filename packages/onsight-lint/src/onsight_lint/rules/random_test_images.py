"""Rule on test images that are augmented at random."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from onsight_lint.edits import Change, apply_changes, indented, replace_node
from onsight_lint.facts import DATASET_PARTS
from onsight_lint.lightning import step_loaders
from onsight_lint.loops import find_loaders_for_other_files
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.scopes import Member
from onsight_lint.syntax import key_of, keyword_value, last_name, word_set

_NAME = "test_transform"
_TRANSFORMS = ("transform", "transforms")  # names of parameters and attributes
_OTHER_RANDOM = word_set("ColorJitter RandAugment AutoAugment TrivialAugmentWide AugMix")
_ASKS_PHASE = re.compile(r"if .*self\.\w*(?:train|test|val|mode|phase|split|stage|aug)")


class _Random(NamedTuple):
    """A dataset with a random transform."""

    created: ast.Call
    transform: ast.expr  # what it was given
    step: ast.Call  # the first random transform in it


def _check(context: Context) -> Iterator[Mistake]:
    """Datasets that are only evaluated, with random transforms."""
    all_scopes = context.script.scopes.values()
    if any(_is_set_later(context, member) for scopes in all_scopes for member in scopes.members):
        return
    loops, loaders = context.loader_loops, context.loaders
    trained = {call for loop in loops if loop.trains for call in loaders.creations(loop.loader)}
    named = [call for _, calls in find_loaders_for_other_files(context, loops) for call in calls]
    named += step_loaders(context, "validation") + step_loaders(context, "test")
    evaluated = {call: loaders.name(call) for call in named}
    for loop in loops:
        if loop.evaluates:
            code = context.script.code(loop.loader)
            evaluated |= dict.fromkeys(loaders.creations(loop.loader), code)
    seen: set[ast.AST] = set()
    for call, name in evaluated.items():
        dataset = loaders.setting(call, "dataset")
        if dataset is None or call in trained:
            continue
        is_part = loaders.has_sampler(call) and "train" not in loaders.name(call)
        if is_part or not _is_training_set(context, dataset):
            found = _find_random(context, dataset)
            if found is not None and found.step not in seen:
                seen.add(found.step)
                yield _mistake(context, name, dataset, found)


RULE = Rule(
    id="random-test-images",
    title="Test images are augmented at random",
    why=(
        "Each evaluation uses different random versions of the images: the result depends on "
        "chance, and does not describe the images that the network will be used on."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _is_set_later(context: Context, member: Member) -> bool:
    """Return whether an assignment may change the transform of a dataset that exists."""
    function = context.script.function(member.node)
    is_own = getattr(function, "name", "") == "__init__" and last_name(member.receiver) == "self"
    return member.key in _TRANSFORMS and not is_own


def _is_training_set(context: Context, dataset: ast.expr) -> bool:
    """Return whether a dataset is the whole training set, evaluated with its own augmentation."""
    nodes = [origin.node for origin in context.values.origins(dataset)]
    flags = [keyword_value(node, "train") for node in nodes if isinstance(node, ast.Call)]
    is_on = any(flag is not None and context.constants.value(flag) is True for flag in flags)
    return is_on or "train" in last_name(dataset)


def _find_random(context: Context, dataset: ast.AST, depth: int = 4) -> _Random | None:
    """The dataset that has a random transform: this one, or that which it is a subset of."""
    found: list[_Random | None] = []
    for origin in context.values.origins(dataset) if depth else []:
        created = origin.node
        if not isinstance(created, ast.Call):
            return None
        path = context.script.path_of(created.func)
        if path in DATASET_PARTS and created.args:
            found.append(_find_random(context, created.args[0], depth - 1))
        else:
            transform = None if origin.steps else _transform(context, created)
            step = _random_step(context, transform) if transform else None
            found.append(_Random(created, transform, step) if transform and step else None)
    return found[0] if found and None not in found else None


def _transform(context: Context, created: ast.Call) -> ast.expr | None:
    """The transform that a dataset is given and, as far as its class can be read, applies."""
    owner, path = context.script.definition(created.func), context.script.path_of(created.func)
    if isinstance(owner, ast.ClassDef):
        return _applied_transform(context, created, owner)
    if path == "torchvision.datasets.ImageFolder" and len(created.args) > 1:
        return created.args[1]
    given = keyword_value(created, "transform") or keyword_value(created, "transforms")
    is_for_one = given is not None and last_name(given) == "Compose"  # not shared with training
    is_certain = is_for_one and last_name(created)[:1].isupper()
    return given if is_certain or path.startswith("torchvision.datasets.") else None


def _applied_transform(context: Context, created: ast.Call, owner: ast.ClassDef) -> ast.expr | None:
    """The argument that a class of the script keeps and applies once to each row in every phase."""
    create, item = (context.values.method(owner, name) for name in ("__init__", "__getitem__"))
    if create is None or item is None:
        return None
    kept, applied = context.script.code(create), context.script.code(item)
    for name in () if _ASKS_PHASE.search(applied) else _TRANSFORMS:
        is_once = applied.count(f"self.{name}(") == 1  # twice: two views, to be compared
        if is_once and re.findall(rf"self\.{name}\s*=\s*(.*\S)", kept) == [name]:
            return context.values.argument(created, create, name)
    return None


def _random_step(context: Context, transform: ast.expr) -> ast.Call | None:
    """The first random step of a transform, if it certainly has one."""
    origins = context.values.origins(transform)
    created = origins[0].node if len(origins) == 1 and not origins[0].steps else None
    if not isinstance(created, ast.Call) or last_name(created.func) != "Compose":
        return None
    composed = created.args[0] if created.args else None
    for step in composed.elts if isinstance(composed, (ast.List, ast.Tuple)) else []:
        if isinstance(step, ast.Call) and _is_random(last_name(step.func)):
            return step
    return None


def _is_random(name: str) -> bool:
    return name.startswith("Random") or name in _OTHER_RANDOM


def _mistake(context: Context, loader: str, dataset: ast.expr, found: _Random) -> Mistake:
    script, step = context.script, found.step
    compose = script.parent(script.parent(step))
    assert isinstance(compose, ast.Call)
    assert isinstance(compose.args[0], (ast.List, ast.Tuple))
    steps = [code for item in compose.args[0].elts if (code := _fixed_step(context, item))]
    lines = [f"{_NAME} = {script.code(compose.func)}([{', '.join(steps)}])"]
    if key_of(dataset) and found.transform in ast.walk(found.created):
        lines.append(_test_dataset(context, dataset, found))
    fixed = "\n".join(indented(script, step, line) for line in lines)
    problem = f"{loader} evaluates images that {last_name(step)} changes at random"
    return Mistake(step, problem, fixed)


def _test_dataset(context: Context, dataset: ast.expr, found: _Random) -> str:
    """The line that creates a test dataset again, without chance."""
    script, (created, transform, _) = context.script, found
    start = script.source(created).start(created)
    change = replace_node(script, transform, _NAME)
    moved = Change(change.start - start, change.end - start, change.text)
    code, name = apply_changes(script.code(created), [moved]), script.code(dataset)
    if not any(origin.node is created for origin in context.values.origins(dataset)):
        code = f"torch.utils.data.Subset({code}, {name}.indices)"
    return f"{name} = {code}"


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
