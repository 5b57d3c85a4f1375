"""The script's text replaced by its mended one, to be run as if it lay in the script's place."""

import ast
from pathlib import Path
from typing import ClassVar

from onsight_explain.mend.mend import Mend
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf


class AsMended(WhatIf):
    """value: the path of the mended text. Never tried by itself: it proves what others gained."""

    value: str
    name = "as_mended"
    group = "text"
    order = 0
    label = "the mended script"
    rewrites: ClassVar[bool] = True

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        return []

    def install(self, hooks: Hooks) -> None:
        def replace(tree: ast.Module) -> dict[str, object]:
            tree.body = ast.parse(Path(self.value).read_bytes(), self.value).body
            return {}

        hooks.on_source(replace)

    def lines(self, trace: Trace) -> list[Mend]:
        return []

    def cause(self, trace: Trace) -> Cause:
        raise NotImplementedError("it is a proof, not a trial")
