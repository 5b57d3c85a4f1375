"""What a notebook expects of IPython: names and modules that do nothing, so that it runs."""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

_VERSION = (9, 0, 0)  # of IPython; matplotlib asks for it


class Nothing:
    """Has every attribute, can be called, and shows nothing."""

    def __getattr__(self, name: str) -> "Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> "Nothing":
        """Do nothing."""
        return self

    def __contains__(self, item: object) -> bool:
        return False

    def __bool__(self) -> bool:
        return False


def stand_ins() -> dict[str, object]:
    """The names that every notebook has; modules that show things are replaced by silent ones."""
    nothing = Nothing()
    if not _is_there("IPython"):
        for name in ("IPython", "IPython.display", "IPython.core", "IPython.core.display"):
            module = ModuleType(name)
            vars(module).update(__path__=[], version_info=_VERSION, __getattr__=nothing.__getattr__)
            sys.modules[name] = module
    if _is_there("tqdm") and not _is_there("ipywidgets"):
        sys.modules["tqdm.notebook"] = importlib.import_module("tqdm.std")
    return {"display": nothing, "get_ipython": lambda: nothing}


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
