"""Rule on nn.DataParallel."""

import ast
import re
from collections.abc import Iterator, Sequence

from onsight.explain.reading.calls import last_name
from onsight.explain.reading.facts import Facts
from onsight.explain.reading.finding import Finding
from onsight.explain.reading.fix import fixed, found, replaced
from onsight.explain.reading.loops import BatchLoop

_BETTER = re.compile(r"DDP|DistributedDataParallel|FSDP")
_WHY = (
    "One process drives all GPUs from one thread, copies the weights to each for every batch and "
    "gathers on the first. With torchrun and DistributedDataParallel each GPU has its own process."
)


def data_parallel(facts: Facts, loops: Sequence[BatchLoop]) -> Iterator[Finding]:
    """nn.DataParallel in a script that has nothing better, unless it does nothing but evaluate."""
    if facts.values.calls("eval") and not any(loop.trains for loop in loops):
        return
    names = (one for one in facts.script.nodes() if isinstance(one, (ast.Name, ast.Attribute)))
    if any(_BETTER.search(last_name(one)) for one in names):
        return
    for call in facts.values.calls("DataParallel"):
        path = facts.script.path_of(call.func)
        if path.startswith("torch.nn.") and call.args:
            name, model = map(facts.script.words, (call.func, call.args[0]))
            rank = 'int(os.environ["LOCAL_RANK"])'
            new = f"{_distributed(name)}({model}, device_ids=[{rank}])"
            text = fixed(facts.script, call, [replaced(call, new)])
            problem = "nn.DataParallel is slower than one process a GPU"
            yield found(facts.script, call, "data-parallel", problem, _WHY, text)


def _distributed(words: str) -> str:
    """The name of DistributedDataParallel as the script would write it."""
    prefix = words.rpartition(".")[0].removesuffix(".parallel") or "torch.nn"
    return f"{prefix}.parallel.DistributedDataParallel"
