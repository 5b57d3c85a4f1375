"""Training in processes that a script starts itself, by multiprocessing: watched there too."""

from collections.abc import Callable
from functools import partial, wraps
from multiprocessing.process import BaseProcess
from typing import Any

from onsight.explainer.tracing.patches import Patches

Runner = Callable[[Callable[..., Any]], Any]

# Processes that serve others, such as a loader's workers.
_HELPERS = ("torch.utils.data.", "multiprocessing.", "concurrent.")


def watch_processes(patches: Patches, run: Runner) -> None:
    """Let every process that is made from now on call its function by `run(function)`.

    run: can be pickled, because processes may be spawned.
    """
    original = BaseProcess.__init__

    @wraps(original)
    def make(process: BaseProcess, *args: Any, **kwargs: Any) -> None:
        original(process, *args, **kwargs)
        made: Any = process
        target = made._target
        if target is not None and not _is_helper(target):
            made._target = partial(_run, run, target)

    patches.put(BaseProcess, "__init__", make)


def _run(run: Runner, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return run(partial(target, *args, **kwargs))


def _is_helper(target: Any) -> bool:
    return str(getattr(target, "__module__", "")).startswith(_HELPERS)
