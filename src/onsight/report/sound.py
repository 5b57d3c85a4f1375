"""What of a run's files a page can be made from, if some values in them have been altered."""

from collections.abc import Callable, Mapping
from typing import Any

from onsight.report.runfiles import Said


def sound_contents(
    contents: Mapping[str, Any], render: Callable[[Mapping[str, Any]], object]
) -> tuple[dict[str, Any], list[str]]:
    """The contents without what makes render raise, and the names of what was left out.

    contents: of each file by its name; of an object, only the values at fault are left out.
    """
    kept: dict[str, Any] = dict.fromkeys(contents)
    damaged: list[str] = []
    for name, content in contents.items():

        def works(tried: Any, name: str = name) -> bool:
            return _works(render, kept | {name: tried})

        if works(content):
            kept[name] = content
        elif isinstance(content, dict):
            kept[name] = _sound_part(content, works)
            damaged += [f"{name}: {key}" for key in content if key not in kept[name]]
        else:
            damaged.append(name)
    return kept, damaged


def _sound_part(content: Mapping[str, Any], works: Callable[[Any], bool]) -> Said:
    """An object without the one value at fault, or, if there are several, as much as works."""
    for fault in content:
        rest = Said({key: value for key, value in content.items() if key != fault})
        if works(rest):
            return rest
    part = Said()
    for key, value in content.items():
        if works(Said(part | {key: value})):
            part[key] = value
    return part


def _works(render: Callable[[Mapping[str, Any]], object], contents: Mapping[str, Any]) -> bool:
    try:
        render(contents)
    except Exception:  # as varied as what a template does with values
        return False
    return True
