"""Rule on nn.DataParallel."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.edits import show_replaced
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.syntax import last_name

_BETTER = re.compile(r"DDP|DistributedDataParallel|FSDP")


def _check(context: Context) -> Iterator[Mistake]:
    """nn.DataParallel in a script that trains and does not use anything better."""
    if context.values.calls("eval") and not any(loop.trains for loop in context.batch_loops):
        return
    names = context.script.nodes(ast.Name, ast.Attribute)
    if any(_BETTER.search(last_name(name)) for name in names):
        return
    for call in context.values.calls("DataParallel"):
        path = context.script.path_of(call.func)
        if path.startswith("torch.nn.") and call.args:
            name, model = map(context.script.code, (call.func, call.args[0]))
            rank = 'int(os.environ["LOCAL_RANK"])'
            new = f"{_distributed_name(name)}({model}, device_ids=[{rank}])"
            problem = "nn.DataParallel is slower than one process per GPU"
            yield Mistake(call, problem, show_replaced(context.script, call, new))


RULE = Rule(
    id="data-parallel",
    title="One process drives all GPUs",
    why=(
        "For every batch, one process copies the weights to all GPUs and gathers the outputs on "
        "the first. With torchrun and DistributedDataParallel, each GPU has its own process."
    ),
    check=_check,
    pattern=r"DataParallel\(",
)


def _distributed_name(name: str) -> str:
    """The name of DistributedDataParallel as the script would write it."""
    prefix = name.rpartition(".")[0].removesuffix(".parallel") or "torch.nn"
    return f"{prefix}.parallel.DistributedDataParallel"
