"""Attributes of classes and modules, replaced for a while and then restored."""

from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patches:
    """Replaces attributes; `undo` restores them, the last one first."""

    def __init__(self) -> None:
        self._former: list[tuple[Any, str, Any]] = []
        self._when_undone: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace one; an inherited attribute is shadowed, not changed."""
        self._former.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def when_undone(self, call: Callable[[], None]) -> None:
        """Call this as well when everything is restored."""
        self._when_undone.append(call)

    def undo(self) -> None:
        """Restore everything."""
        while self._when_undone:
            self._when_undone.pop()()
        while self._former:
            owner, name, value = self._former.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
