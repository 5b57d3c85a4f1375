"""Rule on nn.DataParallel."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import fixed, replaced
from onsight_lint.rule import Mistake, Rule

_BETTER = re.compile(r"DDP|DistributedDataParallel|FSDP")
_WHY = (
    "One process drives all GPUs, copies the weights to each of them for every batch and gathers "
    "the outputs on the first. With torchrun and DistributedDataParallel each GPU has its own "
    "process."
)


def _check(context: Context) -> Iterator[Mistake]:
    """nn.DataParallel in a script that trains and does not use anything better."""
    if context.values.calls("eval") and not any(loop.trains for loop in context.step_loops):
        return
    names = context.script.nodes(ast.Name, ast.Attribute)
    if any(_BETTER.search(last_name(one)) for one in names):
        return
    for call in context.values.calls("DataParallel"):
        path = context.script.path_of(call.func)
        if path.startswith("torch.nn.") and call.args:
            name, model = map(context.script.code, (call.func, call.args[0]))
            rank = 'int(os.environ["LOCAL_RANK"])'
            new = f"{_distributed(name)}({model}, device_ids=[{rank}])"
            text = fixed(context.script, call, [replaced(call, new)])
            problem = "nn.DataParallel is slower than one process per GPU"
            yield Mistake(call, problem, text)


RULE = Rule("data-parallel", "One process drives all GPUs", _WHY, _check, r"DataParallel\(")


def _distributed(words: str) -> str:
    """The name of DistributedDataParallel as the script would write it."""
    prefix = words.rpartition(".")[0].removesuffix(".parallel") or "torch.nn"
    return f"{prefix}.parallel.DistributedDataParallel"
