"""Replaces attributes of classes and modules, some only once their module is imported."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]

_ABSENT = object()


class Patches:
    """Replaced attributes; `undo` restores them in reverse order."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []
        self._undo_callbacks: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute; an inherited one is shadowed, not changed."""
        self._originals.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def when_undone(self, callback: Callable[[], None]) -> None:
        """Register a function that `undo` calls before it restores the attributes."""
        self._undo_callbacks.append(callback)

    def undo(self) -> None:
        """Restore everything."""
        while self._undo_callbacks:
            self._undo_callbacks.pop()()
        while self._originals:
            owner, name, value = self._originals.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def when_imported(name: str, action: Action, patches: Patches) -> None:
    """Call the action with the module as soon as it is imported, or now if it already is.

    Waiting avoids importing large libraries that the script may not use. It stops when the patches
    are undone.
    """
    if module := sys.modules.get(name):
        action(module)
        return
    watcher = _ImportWatcher(name, action)
    sys.meta_path.insert(0, watcher)
    patches.when_undone(watcher.stop)


class _ImportWatcher(MetaPathFinder):
    """Leaves finding the module to the other finders and appends the action to its loading."""

    def __init__(self, name: str, action: Action) -> None:
        self.name, self.action = name, action

    def stop(self) -> None:
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
