"""How objects show themselves in a notebook."""

from collections.abc import Mapping
from html import escape


def facts_table(title: str, facts: Mapping[str, object]) -> str:
    """An HTML table of named facts, everything escaped; it loads nothing."""
    rows = "".join(_row(name, str(fact)) for name, fact in facts.items())
    return f"<table><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>"


def _row(name: str, fact: str) -> str:
    # Lone surrogates stand for bytes of a path that is not UTF-8.
    text = fact.encode("utf-8", "backslashreplace").decode()
    return f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>'
