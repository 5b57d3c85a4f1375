"""The table of reading rules, by id: one file each in the folder rules."""

import pkgutil
from functools import cache
from importlib import import_module

from onsight.lint import rules
from onsight.lint.rule import Rule


@cache
def rule_table() -> dict[str, Rule]:
    """The RULE of every file in the folder rules, by its id, in alphabetical order."""
    modules = pkgutil.iter_modules(rules.__path__, f"{rules.__name__}.")
    found: list[Rule] = [import_module(module.name).RULE for module in modules]
    return {rule.id: rule for rule in sorted(found, key=lambda rule: rule.id)}
