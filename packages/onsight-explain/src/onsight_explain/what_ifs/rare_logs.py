"""What if the training loop logged only every so many steps?"""

import ast
from pathlib import Path

from onsight_explain.mend.mend import Mend
from onsight_explain.mend.rarely import Rarely
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.source import EVERY_STEPS, gate_reads, gated_statement
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.rare_reads import RareReads
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_LEAST = 0.05  # of the time, outside torch's calls or reading values
_LOGS = {
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
_LOGGERS = {"wandb", "mlflow", "logger", "logging", "run"}  # whose `log` it may be


class RareLogs(WhatIf):
    """value: lines of the script, each in a statement that logs in every step."""

    value: tuple[int, ...]
    name = "rare_logs"
    group = "logs"
    rewrites = True
    order = 96
    label = f"logged every {EVERY_STEPS}th step"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        if seen.trace.share("other", "sync") < _LEAST:
            return []
        reads = {line for one in RareReads.worth(seen) for line in one.value}
        taken = {id(gated_statement(seen.tree, line)) for line in reads}
        lines = set()
        for call in ast.walk(seen.tree):
            if isinstance(call, ast.Call) and _logs(call):
                statement = gated_statement(seen.tree, call.lineno)
                if isinstance(statement, ast.Expr) and id(statement) not in taken:
                    lines.add(statement.lineno)
        return [cls(tuple(sorted(lines)))] if lines else []

    def install(self, hooks: Hooks) -> None:
        hooks.on_source(lambda tree: gate_reads(tree, self.value))

    def lines(self, trace: Trace) -> list[Mend]:
        if not trace.script:
            return []
        return [Rarely(Site(file=trace.script, line=line), EVERY_STEPS) for line in self.value]

    def cause(self, trace: Trace) -> Cause:
        name = Path(trace.script).name
        share = percent(trace.share("other", "sync"))
        return Cause(
            "logging",
            f"{share} of the time is outside the network, and every step logs, at "
            f"{name}:{self.value[0]}",
        )


def _logs(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(id=name):
            return name == "print"
        case ast.Attribute(value=ast.Name(id=owner), attr="log"):
            return owner in _LOGGERS
        case ast.Attribute(attr=name):
            return name in _LOGS
    return False
