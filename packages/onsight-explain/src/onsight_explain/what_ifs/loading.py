"""What the what-ifs about loading share: when they are worth trying, and the causes they show."""

from onsight_explain.script.trace import Trace
from onsight_explain.text import percent, step_times
from onsight_explain.what_ifs.what_if import Cause

_LEAST_WAIT = 0.05  # of the time, for the loader to be worth a change
_HALF, _MOST = 0.5, 2 / 3  # of an item's time, for waiting or transforms to be the cause

LOADING = ("loader", "augmentation")  # the groups of these what-ifs


def loading_matters(trace: Trace) -> bool:
    """Whether the script waits for its loader, or has workers."""
    if trace.loader is None:
        return False
    return trace.share("data") >= _LEAST_WAIT or trace.loader.workers > 0


def has_items(trace: Trace) -> bool:
    """Whether loading matters and its items can be replaced one by one."""
    return loading_matters(trace) and trace.loader is not None and trace.loader.has_items


def is_crowded(trace: Trace, cores: int) -> bool:
    """Whether several workers and the compute threads together are more than the cores."""
    workers = trace.loader.workers if trace.loader else 0
    return workers >= 2 and workers + trace.threads > cores


def repeats_slow_work(trace: Trace) -> bool:
    """Whether it waits most for transforms, or a disk, that give the same in every epoch."""
    item = trace.item
    if item is None or trace.share("data") <= _HALF:
        return False
    is_fixed = item.transform_share > _MOST and not item.is_random
    return is_fixed or item.waiting_share > _HALF


def loading_cause(trace: Trace, is_repeated: bool = False) -> Cause:
    """What makes loading slow. is_repeated: avoiding the same work in every epoch helped."""
    waiting = f"{percent(trace.share('data'))} of the time it waits for the loader"
    item, loader = trace.item, trace.loader
    if item is None or loader is None:
        return Cause("loader", waiting)
    (each,) = step_times(item.seconds)
    if item.waiting_share > _HALF:
        return Cause(
            "disk",
            f"{waiting}: an item takes {each}, {percent(item.waiting_share)} of it "
            "waiting for the disk or the network, not computing",
        )
    if item.transform_share > _MOST and item.is_random and not is_repeated:
        return Cause(
            "augmentation",
            f"{waiting}: an item takes {each}, {percent(item.transform_share)} of it in "
            "random transforms, one image at a time",
        )
    if item.transform_share > _MOST:
        return Cause(
            "slow-transform",
            f"{waiting}: an item takes {each}, {percent(item.transform_share)} of it in "
            "transforms that give the same result every epoch",
        )
    where = "in the training process itself" if not loader.workers else "in the workers"
    return Cause("loader", f"{waiting}: reading and decoding an item takes {each}, {where}")
