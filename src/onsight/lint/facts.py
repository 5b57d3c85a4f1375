"""The basic facts about a script: its values, kinds, constants and loaders."""

from pathlib import Path

from onsight.lint.constants import Constants
from onsight.lint.kinds import Kinds
from onsight.lint.loaders import Loaders
from onsight.lint.script import Script
from onsight.lint.values import Values


class Facts:
    """A parsed script, and what answers questions about it."""

    def __init__(self, path: Path) -> None:
        self.script = Script(path)
        self.values = Values(self.script)
        self.kinds = Kinds(self.script, self.values)
        self.constants = Constants(self.script, self.values)
        self.loaders = Loaders(self.script, self.values, self.kinds, self.constants)
