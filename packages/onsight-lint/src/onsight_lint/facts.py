"""The basic facts about a script: its values, kinds, constants and loaders."""

from functools import cached_property

from onsight_lint.constants import Constants
from onsight_lint.kinds import Kinds
from onsight_lint.loaders import Loaders
from onsight_lint.script import Script
from onsight_lint.values import Values


class Facts:
    """A parsed script, and what answers questions about it, made when a rule asks for it."""

    def __init__(self, script: Script) -> None:
        self.script = script

    @cached_property
    def values(self) -> Values:
        """Where values come from."""
        return Values(self.script)

    @cached_property
    def kinds(self) -> Kinds:
        """What values are."""
        return Kinds(self.script, self.values)

    @cached_property
    def constants(self) -> Constants:
        """The values that never change."""
        return Constants(self.script, self.values)

    @cached_property
    def loaders(self) -> Loaders:
        """What is known about DataLoaders."""
        return Loaders(self.script, self.values, self.kinds, self.constants)
