"""The table of reading rules, by id: one file each in the folder rules."""

import pkgutil
from functools import cache
from importlib import import_module

from onsight_lint import rules
from onsight_lint.errors import LintError, did_you_mean
from onsight_lint.rule import Rule


@cache
def rule_table() -> dict[str, Rule]:
    """The RULE of every file in the folder rules, by its id, in alphabetical order."""
    modules = pkgutil.iter_modules(rules.__path__, f"{rules.__name__}.")
    found: list[Rule] = [import_module(module.name).RULE for module in modules]
    return {rule.id: rule for rule in sorted(found, key=lambda rule: rule.id)}


def chosen(select: str = "", ignore: str = "") -> list[Rule]:
    """The rules whose ids begin with one of the words of select, and with none of ignore.

    Words are separated by commas; no words select all. Raises LintError for a word that no id
    begins with.
    """
    table = rule_table()
    wanted, unwanted = _words(select), _words(ignore)
    for word in (*wanted, *unwanted):
        if not any(name.startswith(word) for name in table):
            raise LintError(
                f"no rule begins with {word}.{did_you_mean(word, table)} "
                f"The rules are {', '.join(table)}."
            )
    return [
        rule
        for name, rule in table.items()
        if (not wanted or name.startswith(wanted)) and not name.startswith(unwanted)
    ]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
