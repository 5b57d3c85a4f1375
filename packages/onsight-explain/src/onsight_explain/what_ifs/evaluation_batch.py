"""What if evaluation used larger batches?"""

from dataclasses import replace

from onsight_explain.mend.calls import loader_keywords
from onsight_explain.mend.mend import Mend
from onsight_explain.script.hooks import Hooks, LoaderArguments
from onsight_explain.script.trace import Trace
from onsight_explain.what_ifs.inference_mode import evaluation_cause
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_LEAST = 0.1  # of the time
_SIZE = 256


class EvaluationBatch(WhatIf):
    """value: of every loader that draws nothing. Evaluation gives the same numbers in any batch."""

    value: int
    name = "evaluation_batch"
    group = "evaluation_batch"
    order = 36
    phases = ("evaluation",)

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        loader = seen.trace.evaluation_loader
        if not loader or not loader.batch_size or seen.trace.share("evaluation") < _LEAST:
            return []
        is_small = 2 * loader.batch_size <= _SIZE and (loader.items or 0) >= _SIZE
        return [cls(_SIZE)] if is_small else []

    @property
    def label(self) -> str:
        return f"evaluation in batches of {self.value}"

    def install(self, hooks: Hooks) -> None:
        def change(loader: object, arguments: LoaderArguments) -> None:
            size = arguments["batch_size"]
            if size and not hooks.is_for_training(arguments) and arguments["batch_sampler"] is None:
                arguments["batch_size"] = max(size, self.value)

        hooks.on_loader(change)

    def lines(self, trace: Trace) -> list[Mend]:
        assert trace.evaluation_loader
        keywords = loader_keywords(trace, batch_size=self.value)
        return [replace(keywords, site=trace.evaluation_loader.site)]

    def cause(self, trace: Trace) -> Cause:
        return evaluation_cause(trace)
