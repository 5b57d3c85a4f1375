"""What if values were read into Python, or logged, only every Nth step?"""

import ast
from pathlib import Path

from onsight_explain.fixes.fix import Fix
from onsight_explain.fixes.statements import RunEveryNthStep
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.source import EVERY_STEPS, gate_reads, gated_statement
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.what_if import Baseline, Cause, WhatIf

_MIN_READS = 4  # reads per step; with fewer, not tried
_MIN_SHARE = 0.05  # fraction of the time outside torch's calls or reading values
_LOG_METHODS = {
    "print",
    "set_postfix",
    "set_postfix_str",
    "set_description",
    "add_scalar",
    "add_scalars",
    "log_metric",
    "log_metrics",
    "info",
    "debug",
    "write",
}
_LOGGERS = {"wandb", "mlflow", "logger", "logging", "run"}  # names whose method `log` logs


class RareReads(WhatIf):
    """Read values only every nth step, in the training loop's statements at the lines `value`."""

    value: tuple[int, ...]
    name = "rare_reads"
    group = "reads"
    order = 95
    rewrites_source = True
    label = f"values read every {EVERY_STEPS}th step"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        lines = {}  # keyed by the first line of the statement
        for reads in baseline.trace.reads:
            for site in reads.sites:
                statement = gated_statement(baseline.tree, site.line)
                if statement and reads.per_step >= _MIN_READS:
                    lines[statement.lineno] = site.line
        return [cls(tuple(sorted(lines.values())))] if lines else []

    def install(self, hooks: Hooks) -> None:
        hooks.on_source(lambda tree: gate_reads(tree, self.value))

    def fixes(self, trace: Trace) -> list[Fix]:
        file = next(site.file for reads in trace.reads for site in reads.sites)
        return _run_rarely(file, self.value)

    def cause(self, trace: Trace) -> Cause:
        reads = max(trace.reads, key=lambda reads: reads.per_step)
        often = f"{reads.per_step:,.0f} times per step"
        return Cause("sync", f"a value is read into Python {often}, at {reads.sites[0]}")


class RareLogs(WhatIf):
    """Log only every nth step, in the statements at the lines `value`."""

    value: tuple[int, ...]
    name = "rare_logs"
    group = "logs"
    rewrites_source = True
    order = 96
    label = f"logged every {EVERY_STEPS}th step"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        if baseline.trace.share("other", "sync") < _MIN_SHARE:
            return []
        tree = baseline.tree
        read_lines = {line for reads in RareReads.candidates(baseline) for line in reads.value}
        reads = {id(gated_statement(tree, line)) for line in read_lines}
        lines = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _is_log(node):
                statement = gated_statement(tree, node.lineno)
                if isinstance(statement, ast.Expr) and id(statement) not in reads:
                    lines.add(statement.lineno)
        return [cls(tuple(sorted(lines)))] if lines else []

    def install(self, hooks: Hooks) -> None:
        hooks.on_source(lambda tree: gate_reads(tree, self.value))

    def fixes(self, trace: Trace) -> list[Fix]:
        return _run_rarely(trace.script, self.value) if trace.script else []

    def cause(self, trace: Trace) -> Cause:
        name = Path(trace.script).name
        share = percent(trace.share("other", "sync"))
        return Cause(
            "logging",
            f"{share} of the time is outside the network, and every step logs, at "
            f"{name}:{self.value[0]}",
        )


def _run_rarely(file: str, lines: tuple[int, ...]) -> list[Fix]:
    return [RunEveryNthStep(Site(file=file, line=line), EVERY_STEPS) for line in lines]


def _is_log(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(id=name):
            return name == "print"
        case ast.Attribute(value=ast.Name(id=owner), attr="log"):
            return owner in _LOGGERS
        case ast.Attribute(attr=name):
            return name in _LOG_METHODS
    return False
