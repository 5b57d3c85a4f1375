"""What if the loaders had another number of worker processes?"""

from onsight_explain.mend.calls import loader_keywords, no_workers
from onsight_explain.mend.mend import Mend
from onsight_explain.script.hooks import Hooks, LoaderArguments, set_workers
from onsight_explain.script.trace import LoaderFacts, Trace
from onsight_explain.text import plural
from onsight_explain.what_ifs.loading import is_crowded, loading_cause, loading_matters
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf


class Workers(WhatIf):
    """value: how many; with 0 the training process loads the items itself."""

    value: int
    name = "workers"
    group = "loader"
    order = 10
    phases = ("data",)

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        loader = seen.trace.loader
        if loader is None or not loading_matters(seen.trace):
            return []
        counts = {0, 1, max(1, seen.cores // 2), seen.cores} - {loader.workers}
        most = loader.most_workers or max(counts)
        return [cls(count) for count in sorted(counts) if count <= most]

    def removes_fault(self, seen: Seen) -> bool:
        return not self.value and is_crowded(seen.trace, seen.cores)

    @property
    def label(self) -> str:
        return plural(self.value, "worker")

    def install(self, hooks: Hooks) -> None:
        def change(loader: object, arguments: LoaderArguments) -> None:
            set_workers(arguments, self.value)

        hooks.on_loader(change)

    def shows(self, trace: Trace) -> bool:
        return trace.loader is not None and trace.loader.workers == self.value

    def lines(self, trace: Trace) -> list[Mend]:
        return [loader_keywords(trace, num_workers=self.value) if self.value else no_workers(trace)]

    def is_for(self, loader: LoaderFacts) -> bool:
        return loader.workers != self.value

    def cause(self, trace: Trace) -> Cause:
        return loading_cause(trace)
