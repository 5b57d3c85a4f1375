"""Values in annotations; ValueError for what is missing or no number."""

import math
from xml.etree.ElementTree import Element


def child(element: Element, name: str) -> str:
    """The text of the first child of a name. Raises ValueError."""
    text = element.findtext(name)
    if text is None:
        raise ValueError(f"<{element.tag}> has no <{name}>")
    return text


def attribute(element: Element, name: str) -> str:
    """An attribute's text. Raises ValueError."""
    text = element.get(name)
    if text is None:
        raise ValueError(f"<{element.tag}> has no {name}")
    return text


def number(value: str | float) -> float:
    """A finite number. Raises ValueError."""
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{value} is no position")
    return found
