"""What could be changed in a script from outside, judged by what was seen of it."""

import ast
import os
from dataclasses import dataclass

from onsight.explain.script.rewriting import gated_statement
from onsight.explain.script.trace import Changes, Trace
from onsight.hardware.spinning import SHORT_SPIN, SPIN_VARIABLE
from onsight.words import plural

_BATCHES = (64, 256)  # sizes to try above the script's own
_LEAST_BATCHES = 8  # in an epoch, that a larger batch must leave
_LEAST_WAIT = 0.05  # of the time, for the loader to be worth a change
_READS = 4  # of values in a step, at least, to run their statement rarely
_FUSABLE = ("Adam", "AdamW", "SGD")

# Of each kind one at a time makes sense.
KINDS = {
    "workers": "loader",
    "persistent_workers": "loader",
    "cache": "loader",
    "augment_batches": "augmentation",
    "pin_memory": "pinning",
    "batch_factor": "batch",
    "threads": "threads",
    "short_spin": "threads",
    "channels_last": "memory_format",
    "bf16": "precision",
    "fused": "optimizer",
    "no_grad": "evaluation",
    "rare_reads": "reads",
}


@dataclass(frozen=True)
class WhatIf:
    """A change with its name."""

    name: str
    changes: Changes

    @property
    def kinds(self) -> set[str]:
        """What it is a change of."""
        return {KINDS[name] for name in self.changes.changed()}

    def with_(self, other: "WhatIf") -> "WhatIf":
        """Both together."""
        return WhatIf(f"{self.name} + {other.name}", self.changes.with_(other.changes))


def what_ifs(trace: Trace, tree: ast.Module, cores: int) -> list[WhatIf]:
    """The changes worth trying, those of the loader first."""
    found = [*_of_loader(trace, cores), *_of_batch(trace), *_of_step(trace, cores)]
    if trace.graphs_kept:
        found.append(WhatIf("evaluation under no_grad", Changes(no_grad=True)))
    lines = rare_lines(trace, tree)
    if lines:
        found.append(WhatIf("values read every 50th step", Changes(rare_reads=lines)))
    return found


def rare_lines(trace: Trace, tree: ast.Module) -> tuple[int, ...]:
    """Lines of the training loop that read many values each step and could do so rarely."""
    statements = {}
    for reads in trace.reads:
        for site in reads.sites:
            statement = gated_statement(tree, site.line)
            if statement and reads.per_step >= _READS:
                statements[statement.lineno] = site.line
    return tuple(sorted(statements.values()))


def _of_loader(trace: Trace, cores: int) -> list[WhatIf]:
    loader, item, found = trace.loader, trace.item, []
    if loader is None:
        return []
    waits = trace.share("data") >= _LEAST_WAIT
    if waits or loader.workers:
        for workers in sorted({0, 1, max(1, cores // 2), cores} - {loader.workers}):
            name = plural(workers, "worker")
            found.append(WhatIf(name, Changes(workers=workers)))
    if loader.workers and trace.epochs and not loader.is_persistent:
        found.append(WhatIf("workers kept", Changes(persistent_workers=True)))
    if item and (waits or loader.workers):
        if item.is_random:
            found.append(WhatIf("files decoded once", Changes(cache="files")))
            found.append(WhatIf("fixed transforms once", Changes(cache="fixed")))
            found.append(WhatIf("augmentation of batches", Changes(augment_batches=True)))
        else:
            found.append(WhatIf("items kept in memory", Changes(cache="items")))
    if trace.device.startswith("cuda") and not loader.is_pinned:
        found.append(WhatIf("pinned memory", Changes(pin_memory=True)))
    return found


def _of_batch(trace: Trace) -> list[WhatIf]:
    loader = trace.loader
    if loader is None or not loader.batch_size or not loader.items:
        return []
    found = []
    for size in _BATCHES:
        factor = size // loader.batch_size
        if factor > 1 and loader.items >= _LEAST_BATCHES * size:
            batch = factor * loader.batch_size
            found.append(WhatIf(f"batch {batch}", Changes(batch_factor=factor)))
    return found


def _of_step(trace: Trace, cores: int) -> list[WhatIf]:
    found = []
    if trace.device == "cpu":
        for threads in sorted({1, cores} - {trace.threads}):
            name = plural(threads, "thread")
            found.append(WhatIf(name, Changes(threads=threads)))
        if trace.threads > 1 and os.environ.get(SPIN_VARIABLE, SHORT_SPIN) == SHORT_SPIN:
            found.append(WhatIf("threads that spin briefly", Changes(short_spin=True)))
    if len(trace.shape) == 3 and not trace.is_channels_last:
        found.append(WhatIf("channels last", Changes(channels_last=True)))
    if trace.precision == "fp32":
        found.append(WhatIf("bf16 autocast", Changes(bf16=True)))
    if trace.optimizer and trace.optimizer.name in _FUSABLE and not trace.optimizer.is_fused:
        found.append(WhatIf("fused optimizer", Changes(fused=True)))
    return found
