"""Format counts, lists, percentages, times, sizes and plain values, the same way everywhere."""

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

NO_VALUE = "–"

# Control characters except tab and line break, and characters that reverse the order of a line.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plural(count: int, singular: str, plural_form: str | None = None) -> str:
    """Return a count with its noun: `1 core`, `2 cores`; by default the plural adds an s."""
    return f"{count:,} {singular if count == 1 else plural_form or singular + 's'}"


def none_usable(count: int, noun: str, where: str = "") -> str:
    """Return `the input cannot be used`, or `none of the 5 inputs can be used`."""
    if count == 1:
        return f"the {noun}{where} cannot be used"
    return f"none of the {count:,} {noun}s{where} can be used"


def joined(names: Sequence[str], limit: int = 8) -> str:
    """Return `a, b and c`, or for more names than the limit `a, b and 5 more`."""
    if len(names) > limit + 1:  # one more name takes no more room than "1 more"
        names = [*names[:limit], f"{len(names) - limit:,} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def shorten(name: str, length: int) -> str:
    """Return a name on one line, cut to at most length characters."""
    plain = " ".join(name.split())
    return plain if len(plain) <= length else plain[: length - 1] + "…"


def printable(text: str) -> str:
    """Return text that cannot steer a terminal, as the name of somebody else's file might."""
    return _UNPRINTABLE.sub(lambda match: repr(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """Return text for a line of its own: printable, with line breaks escaped."""
    return printable(text).replace("\n", "\\n")


def path_ending(path: str, length: int = 44) -> str:
    """Return the end of a path, which is the part that tells files apart."""
    if len(path) <= length:
        return path
    tail = path[-length:]
    return "…/" + (tail.partition("/")[2] or tail)


def percent(fraction: float | None) -> str:
    """Return a fraction as 91.4%, with more digits where fewer would round to 0% or 100%."""
    if fraction is None or not math.isfinite(fraction):
        return NO_VALUE
    fraction = round(fraction, 9)  # an interval's end may miss 1 by the float's last bit
    if fraction in (0, 1):
        return f"{fraction:.0%}"
    if fraction < 0.0001:
        return "<0.01%"
    if fraction > 0.9999:
        return ">99.99%"
    return f"{fraction:.2%}" if fraction < 0.0005 or fraction > 0.9995 else f"{fraction:.1%}"


def fixed_percent(fraction: float | None) -> str:
    """Return a fraction as 91.40%, always with two decimals so that columns in a terminal align."""
    return "-" if fraction is None else f"{100 * fraction:.2f}%"


def duration(seconds: float | None) -> str:
    """Return seconds as 0.42 s, 12.3 s, 4 min 5 s or 2 h 3 min."""
    if seconds is None or not math.isfinite(seconds):
        return NO_VALUE
    if round(seconds, 1) < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def rough_duration(seconds: float) -> str:
    """Return seconds that are only estimated as 40 s or 2.5 min."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.2g} min"


def resume_hint(out: object) -> str:
    """Return how to continue the run, or the sweep, in a folder."""
    return f"to continue, repeat the command with --out {out} --resume"


def data_size(count: int) -> str:
    """Return bytes of a file or a disk as 5.5 MB or 12.3 GB."""
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:,.1f} GB"


def gib(count: int) -> str:
    """Return bytes of memory as 79.2 GiB."""
    return f"{count / 2**30:,.1f} GiB"


def whole_number(value: float | None) -> str:
    """Return a count as 12,345."""
    return NO_VALUE if value is None or not math.isfinite(value) else f"{value:,.0f}"


def four_digits(value: float | None) -> str:
    """Return a measured number with four significant digits."""
    return NO_VALUE if value is None else f"{value:,.4g}"


def plain_value(value: Any) -> str:
    """Return a value from a JSON or TOML file as text for people: yes, 1,024, a 1, b 2."""
    if value is None:
        return NO_VALUE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == "":
        return "none"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain_value(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(plain_value(item) for item in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def notebook_table(title: str, facts: Mapping[str, object]) -> str:
    """Return an HTML table of named facts for a notebook, everything escaped."""
    rows = "".join(_notebook_row(name, str(fact)) for name, fact in facts.items())
    return f"<table><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>"


def _notebook_row(name: str, fact: str) -> str:
    # Lone surrogates stand for bytes of a path that is not UTF-8.
    text = fact.encode("utf-8", "backslashreplace").decode()
    return f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>'
