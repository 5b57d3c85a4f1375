"""Run the fixed text of a script under the original's name and in its folder."""

import ast
from pathlib import Path

from onsight_explain.fixes.fix import Fix
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.what_ifs.what_if import Baseline, Cause, WhatIf


class RunFixedScript(WhatIf):
    """Run the fixed script at the path `value`. Never a candidate: confirms the other changes."""

    value: str
    name = "fixed_script"
    group = "text"
    order = 0
    label = "the fixed script"
    rewrites_source = True

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        return []

    def install(self, hooks: Hooks) -> None:
        def replace(tree: ast.Module) -> dict[str, object]:
            tree.body = ast.parse(Path(self.value).read_bytes(), self.value).body
            return {}

        hooks.on_source(replace)

    def fixes(self, trace: Trace) -> list[Fix]:
        return []

    def cause(self, trace: Trace) -> Cause:
        raise NotImplementedError("it confirms other changes and is the cause of nothing")
