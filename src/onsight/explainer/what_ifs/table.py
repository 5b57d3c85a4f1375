"""All what-ifs, in the order in which they are tried, applied and advised."""

from collections.abc import Iterable

from onsight.explainer.script.trace import Plain
from onsight.explainer.what_ifs.augmentation import AugmentBatches
from onsight.explainer.what_ifs.batch import LargerBatch
from onsight.explainer.what_ifs.bf16 import Bf16
from onsight.explainer.what_ifs.cache import Cache
from onsight.explainer.what_ifs.channels_last import ChannelsLast
from onsight.explainer.what_ifs.fused import FusedOptimizer
from onsight.explainer.what_ifs.no_grad import NoGrad
from onsight.explainer.what_ifs.persistent import PersistentWorkers
from onsight.explainer.what_ifs.pinned import PinnedMemory
from onsight.explainer.what_ifs.rare_reads import RareReads
from onsight.explainer.what_ifs.spin import ShortSpin
from onsight.explainer.what_ifs.threads import Threads
from onsight.explainer.what_ifs.what_if import Seen, WhatIf
from onsight.explainer.what_ifs.workers import Workers

TABLE: tuple[type[WhatIf], ...] = (
    Workers,
    PersistentWorkers,
    AugmentBatches,  # before Cache, which then finds items without augmentation
    Cache,
    PinnedMemory,
    LargerBatch,
    Threads,
    ShortSpin,
    ChannelsLast,
    Bf16,
    FusedOptimizer,
    NoGrad,
    RareReads,
)


def what_ifs_for(seen: Seen) -> list[WhatIf]:
    """Those worth trying."""
    return [what_if for kind in TABLE for what_if in kind.worth(seen)]


def what_ifs_from(changes: dict[str, Plain]) -> list[WhatIf]:
    """Those with these names and values, in the order of the table. KeyError: no such name."""
    kinds = {kind.name: kind for kind in TABLE}
    return in_order([kinds[name](value) for name, value in changes.items()])


def in_order(what_ifs: Iterable[WhatIf]) -> list[WhatIf]:
    """Sorted as in the table."""
    return sorted(what_ifs, key=lambda one: TABLE.index(type(one)))
