"""A fix: one change of a script's text, which is made only if its place in the code is certain."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from onsight_explain.fixes.draft import CannotFix, Draft
from onsight_explain.tracing.sites import Site


@dataclass(frozen=True)
class Fix(ABC):
    """One change of a script's text."""

    site: Site | None  # in the script as it was before any fix; None if no place is known
    imports: ClassVar[tuple[str, ...]] = ()  # statements that the changed code needs
    edits_text: ClassVar[bool] = True  # False if the fix is only printed
    needs_site: ClassVar[bool] = True  # whether the fix cannot be applied without a site

    @property
    @abstractmethod
    def instruction(self) -> str:
        """What the user should change by hand, where the fix cannot be applied."""

    @property
    def merge_key(self) -> object:
        """Of fixes with the same key, such as those of one call, only the last is reported."""
        return self

    @abstractmethod
    def apply(self, draft: Draft) -> None:
        """Make the change. Raises CannotFix and leaves the draft as it was."""

    def summary(self, draft: Draft) -> str:
        """Return the change as one line; called after all fixes were applied."""
        return self.instruction


@dataclass(frozen=True)
class FixGroup(Fix):
    """Fixes that are applied together or not at all. The group's site is None."""

    parts: tuple[Fix, ...]

    @property
    def instruction(self) -> str:
        return "\n".join(part.instruction for part in self.parts)

    def apply(self, draft: Draft) -> None:
        """Apply the parts, which must all be in this file."""
        for part in self.parts:
            part.apply(draft)


@dataclass(frozen=True)
class Advice(Fix):
    """A change that cannot be made safely by editing the text; it is printed for the user."""

    text: str

    @property
    def instruction(self) -> str:
        return self.text

    def apply(self, draft: Draft) -> None:
        raise CannotFix("it cannot be changed automatically")


@dataclass(frozen=True)
class LaunchAdvice(Advice):
    """A change of how the script is started. Its site is None."""

    edits_text = False
    needs_site = False

    def apply(self, draft: Draft) -> None:
        """Do nothing: the text becomes a comment at the top of the fixed file."""
