"""Training in processes that a script starts itself, by multiprocessing: watched there too."""

import itertools
from collections.abc import Callable
from functools import partial, wraps
from multiprocessing.process import BaseProcess
from typing import Any

from onsight_explain.tracing.patches import Patches

Runner = Callable[[Callable[..., Any]], Any]

# Processes that serve others, such as a loader's workers.
_HELPERS = ("torch.utils.data.", "multiprocessing.", "concurrent.")


def watch_processes(patches: Patches, run: Runner, started: Callable[[], None]) -> None:
    """Let every process that is started from now on call its function by `run(function)`.

    run: can be pickled, because processes may be spawned; started: called here for the first one.
    """
    original = BaseProcess.start
    count = itertools.count()

    @wraps(original)
    def start(process: BaseProcess) -> None:
        target = vars(process).get("_target")
        if target is not None and not _is_helper(target):
            vars(process)["_target"] = partial(_run, run, target)
            if not next(count):
                started()
        original(process)

    patches.put(BaseProcess, "start", start)


def _run(run: Runner, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return run(partial(target, *args, **kwargs))


def _is_helper(target: Any) -> bool:
    return str(getattr(target, "__module__", "")).startswith(_HELPERS)
