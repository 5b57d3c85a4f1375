"""What if the loaders kept their workers from one epoch to the next?"""

from onsight_explain.mend.calls import loader_keywords
from onsight_explain.mend.mend import Mend
from onsight_explain.script.hooks import Hooks, LoaderArguments
from onsight_explain.script.trace import LoaderFacts, Trace
from onsight_explain.what_ifs.loading import loading_cause
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf


class PersistentWorkers(WhatIf):
    """Avoids starting them again in every epoch; shows only if whole epochs are measured."""

    name = "persistent_workers"
    group = "loader"
    order = 15
    phases = ("data",)
    label = "workers kept"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        trace, loader = seen.trace, seen.trace.loader
        if loader and loader.workers and trace.epochs and not loader.is_persistent:
            return [cls(True)]
        return []

    def install(self, hooks: Hooks) -> None:
        def change(loader: object, arguments: LoaderArguments) -> None:
            if arguments["num_workers"]:
                arguments["persistent_workers"] = True

        hooks.on_loader(change)

    def lines(self, trace: Trace) -> list[Mend]:
        return [loader_keywords(trace, persistent_workers=True)]

    def is_for(self, loader: LoaderFacts) -> bool:
        return loader.workers > 0 and not loader.is_persistent

    def cause(self, trace: Trace) -> Cause:
        return loading_cause(trace)
