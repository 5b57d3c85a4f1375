"""Rule on validation and test loaders that yield the images of the training."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.batch_means import batch_sums
from onsight_lint.edits import Change, indented, replace_node, show_changed, show_replaced
from onsight_lint.facts import DATASET_PARTS, DATASET_SIZES, train_flag
from onsight_lint.lightning import step_loaders
from onsight_lint.loops import find_loaders_for_other_files
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.scopes import ANY, EACH
from onsight_lint.syntax import COMPREHENSIONS, FUNCTIONS, LOOPS, last_name, word_set
from onsight_lint.values import Origin

_MADE_UP = re.compile(r"fake|dummy|synth|toy|random(?!_split)", re.IGNORECASE)
_READ_ONLY = word_set("classes class_to_idx num_classes n_classes collate_fn")  # of a dataset


def _check(context: Context) -> Iterator[Mistake]:
    """`test_loader = DataLoader(train_set)` in an evaluation that yields a figure."""
    loops, creations = context.loader_loops, context.loaders.creations
    trained = [call for loop in loops if loop.trains for call in creations(loop.loader)]
    trained += step_loaders(context, "train")
    measured = [loop for loop in loops if loop.evaluates and any(batch_sums(context, loop))]
    evaluated = [call for loop in measured for call in creations(loop.loader)]
    evaluated += step_loaders(context, "validation") + step_loaders(context, "test")
    yield from _compare(context, trained, evaluated)
    for made in find_loaders_for_other_files(context, loops):
        yield from _compare(context, *made)


def _compare(
    context: Context, trained: list[ast.Call], evaluated: list[ast.Call]
) -> Iterator[Mistake]:
    """Yield a mistake where loaders for training and for evaluation share images."""
    opened = {origin: call for call in trained if (origin := _opened(context, call))}
    parts = {path for origin in opened if (path := _part(context, origin))}
    divided = {whole for origin in opened if (whole := _whole(context, origin))}
    for call in dict.fromkeys(evaluated):
        origin = _opened(context, call) if call not in trained else None
        if origin is None or not context.loaders.is_for_tests(call):
            continue
        whole = _whole(context, origin)
        if origin in opened and _opens_one_dataset(context, origin, call):
            problem = "is also what the network is trained on"
            yield _shared_mistake(context, call, "test_part", problem)
        elif isinstance(origin.node, ast.Call) and _part(context, origin) in parts:
            yield _part_mistake(context, origin.node)
        elif whole is not None and whole in opened and whole not in divided:
            divided.add(whole)
            loader = opened[whole]
            if _opens_one_dataset(context, whole, loader):
                problem = f"also has the images of {context.loaders.name(call)}"
                yield _shared_mistake(context, loader, "train_part", problem)


RULE = Rule(
    id="evaluates-training-set",
    title="Evaluation on the training images",
    why=(
        "The network has learned from these images, so the result says how well it remembers them, "
        "not how well it will do on new ones; overfitting cannot be seen."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _opened(context: Context, call: ast.Call) -> Origin | None:
    """The call that opens a loader's dataset, if the loader certainly yields all of it."""
    dataset = context.loaders.setting(call, "dataset")
    samplers = [context.loaders.setting(call, name) for name in ("sampler", "batch_sampler")]
    if dataset is None or any(samplers) or not context.kinds.uses(dataset) <= _READ_ONLY:
        return None
    origins = context.values.origins(dataset)
    is_certain = len(origins) == 1 and isinstance(origins[0].node, ast.Call)
    return origins[0] if is_certain and not {ANY, EACH}.intersection(origins[0].steps) else None


def _whole(context: Context, part: Origin) -> Origin | None:
    """The dataset that random_split or Subset takes a part from."""
    created = part.node
    if not isinstance(created, ast.Call) or not created.args:
        return None
    is_part = context.script.path_of(created.func) in DATASET_PARTS
    origins = context.values.origins(created.args[0]) if is_part else []
    return origins[0] if len(origins) == 1 else None


def _opens_one_dataset(context: Context, origin: Origin, call: ast.Call) -> bool:
    """Return whether a loader's dataset is of files, or for training by its name.

    The call that opens it must not run twice, and so open another.
    """
    created, dataset = origin.node, context.loaders.setting(call, "dataset")
    assert isinstance(created, ast.Call)
    owner, path = context.script.definition(created.func), context.script.path_of(created.func)
    is_of_files = path.startswith("torchvision.datasets.") or isinstance(owner, ast.ClassDef)
    is_for_training = dataset is not None and "train" in last_name(dataset)
    home = context.script.function(created)
    is_repeated = isinstance(home, FUNCTIONS) and len(context.values.call_sites(home)) > 1
    around = context.script.ancestors(created)
    return (is_for_training or (is_of_files and not origin.steps)) and not (
        is_repeated
        or _MADE_UP.search(last_name(created))
        or any(isinstance(node, (*LOOPS, *COMPREHENSIONS, ast.Lambda)) for node in around)
    )


def _part(context: Context, origin: Origin) -> str:
    """The full name of a dataset such as CIFAR10 if its training images are opened, else ""."""
    created = origin.node
    if origin.steps or not isinstance(created, ast.Call):
        return ""
    path = context.script.path_of(created.func)
    is_known = path.startswith("torchvision.datasets.") and last_name(created) in DATASET_SIZES
    return path if is_known and context.loaders.is_training_part(created) else ""


def _shared_mistake(context: Context, call: ast.Call, part: str, problem: str) -> Mistake:
    dataset = context.loaders.setting(call, "dataset")
    assert dataset is not None
    name = context.script.code(dataset)
    line = f"train_part, test_part = torch.utils.data.random_split({name}, [0.8, 0.2])"
    above = indented(context.script, call, line)
    fixed = f"{above}\n{show_replaced(context.script, dataset, part)}"
    return Mistake(call, f"{name} {problem}", fixed)


def _part_mistake(context: Context, created: ast.Call) -> Mistake:
    flag = train_flag(created)
    end = context.script.source(created).end([*created.args, *created.keywords][-1])
    added = Change(end, end, ", train=False")
    change = replace_node(context.script, flag, "False") if flag else added
    problem = f"the test images are {last_name(created)}'s training images"
    return Mistake(created, problem, show_changed(context.script, created, [change]))
