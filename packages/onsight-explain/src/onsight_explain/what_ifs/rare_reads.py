"""What if values were read into Python only every so many steps?"""

from onsight_explain.mend.mend import Mend
from onsight_explain.mend.rarely import Rarely
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.source import EVERY_STEPS, gate_reads, gated_statement
from onsight_explain.script.trace import Trace
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_READS = 4  # per step, at least


class RareReads(WhatIf):
    """value: lines of the script, each in a statement of its training loop that reads values."""

    value: tuple[int, ...]
    name = "rare_reads"
    group = "reads"
    order = 95
    rewrites = True
    label = f"values read every {EVERY_STEPS}th step"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        statements = {}
        for reads in seen.trace.reads:
            for site in reads.sites:
                statement = gated_statement(seen.tree, site.line)
                if statement and reads.per_step >= _READS:
                    statements[statement.lineno] = site.line
        return [cls(tuple(sorted(statements.values())))] if statements else []

    def install(self, hooks: Hooks) -> None:
        hooks.on_source(lambda tree: gate_reads(tree, self.value))

    def lines(self, trace: Trace) -> list[Mend]:
        file = next(site.file for reads in trace.reads for site in reads.sites)
        return [Rarely(Site(file=file, line=line), EVERY_STEPS) for line in self.value]

    def cause(self, trace: Trace) -> Cause:
        reads = max(trace.reads, key=lambda one: one.per_step)
        often = f"{reads.per_step:,.0f} times per step"
        return Cause("sync", f"a value is read into Python {often}, at {reads.sites[0]}")
