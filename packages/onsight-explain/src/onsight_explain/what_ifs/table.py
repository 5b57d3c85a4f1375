"""All what-ifs, found in the files of this folder, in the order in which they are applied."""

import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib import import_module

from onsight_explain import what_ifs
from onsight_explain.script.trace import Plain
from onsight_explain.what_ifs.what_if import Seen, WhatIf

_LEAST_SAVED = 0.03  # of the time


@cache
def all_kinds() -> tuple[type[WhatIf], ...]:
    """The kinds of what-ifs in the files of the folder, by their order, then by name."""
    files = pkgutil.iter_modules(what_ifs.__path__, f"{what_ifs.__name__}.")
    modules = [import_module(file.name) for file in files]
    found = {kind for module in modules for kind in vars(module).values() if _is_kind(kind)}
    return tuple(sorted(found, key=lambda kind: (kind.order, kind.name)))


def what_ifs_for(seen: Seen) -> list[WhatIf]:
    """Those worth trying: first those against faults, then those that could gain most."""
    found = [what_if for kind in all_kinds() for what_if in kind.worth(seen)]
    able = [one for one in found if one.most_saved(seen) >= _LEAST_SAVED]
    return sorted(able, key=lambda one: (not one.removes_fault(seen), -one.most_saved(seen)))


def what_ifs_from(changes: dict[str, Plain]) -> list[WhatIf]:
    """Those with these names and values, in the order of application. KeyError: no such name."""
    kinds = {kind.name: kind for kind in all_kinds()}
    return in_order([kinds[name](value) for name, value in changes.items()])


def in_order(what_ifs: Iterable[WhatIf]) -> list[WhatIf]:
    """In the order of application."""
    return sorted(what_ifs, key=lambda one: all_kinds().index(type(one)))


def _is_kind(value: object) -> bool:
    """Whether this is a what-if that can be made, and not a base of others."""
    is_class = isinstance(value, type) and issubclass(value, WhatIf)
    return is_class and not getattr(value, "__abstractmethods__", None)
