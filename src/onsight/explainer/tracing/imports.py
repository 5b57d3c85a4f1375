"""Calls a function as soon as a module has been imported: some take long, and are rarely needed."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from onsight.explainer.tracing.patches import Patches

Action = Callable[[ModuleType], None]


def when_imported(name: str, action: Action, patches: Patches) -> None:
    """Call the action with the module once it is loaded; at once, if it is already.

    When the patches are undone, it waits no longer.
    """
    if module := sys.modules.get(name):
        action(module)
        return
    watcher = _Watcher(name, action)
    sys.meta_path.insert(0, watcher)
    patches.when_undone(watcher.stop)


class _Watcher(MetaPathFinder):
    """Finds no modules itself: changes how the one it waits for is loaded."""

    def __init__(self, name: str, action: Action) -> None:
        self.name, self.action = name, action

    def stop(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        self.stop()
        spec = importlib.util.find_spec(fullname)
        if spec and spec.loader:
            original = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                original(module)
                self.action(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
