"""What if the whole data set lay on the GPU, and batches were gathered there?"""

from dataclasses import dataclass

import torch

from onsight_explain.accelerator import has_streams
from onsight_explain.mend.kept import kept_batches
from onsight_explain.mend.mend import Mend
from onsight_explain.script.hooks import Hooks, LoaderArguments
from onsight_explain.script.trace import Trace
from onsight_explain.what_ifs.keeping import Keeper
from onsight_explain.what_ifs.loading import loading_cause
from onsight_explain.what_ifs.pinned import copy_cause
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_LEAST = 0.05  # of the time, waiting for the loader or for copies


@dataclass(frozen=True)
class OnDevice(WhatIf):
    """value: which device. On the CPU it is the same as keeping the items in memory."""

    value: str
    name = "on_device"
    group = "loader"
    order = 24
    label = "items kept on the GPU"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        trace, item = seen.trace, seen.trace.item
        if not item or item.is_random or not has_streams(torch.device(trace.device)):
            return []
        return [cls(trace.device)] if trace.share("data", "copy") >= _LEAST else []

    def install(self, hooks: Hooks) -> None:
        keeper = Keeper(hooks, torch.device(self.value))

        def change(loader: object, arguments: LoaderArguments) -> None:
            if not keeper.keep(arguments):
                raise ValueError("the items cannot be stacked and put on the device")

        hooks.on_loader(change)

    def lines(self, trace: Trace) -> list[Mend]:
        return kept_batches(trace, self.value)

    def cause(self, trace: Trace) -> Cause:
        is_copying = trace.share("copy") > trace.share("data")
        return copy_cause(trace) if is_copying else loading_cause(trace, is_repeated=True)
