"""A mend: one change of a script's text at one place, made with certainty or not at all."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from onsight_explain.mend.draft import Draft
from onsight_explain.tracing.sites import Site


@dataclass(frozen=True)
class Mend(ABC):
    """site: where, as the script was before any mend; None: nowhere in particular.

    imports: statements that it needs; is_text: False if it is said only;
    needs_site: whether it can be made nowhere without one.
    """

    site: Site | None
    imports: ClassVar[tuple[str, ...]] = ()
    is_text: ClassVar[bool] = True
    needs_site: ClassVar[bool] = True

    @property
    @abstractmethod
    def words(self) -> str:
        """What to change, for a place where it cannot be made with certainty."""

    @property
    def place(self) -> object:
        """Mends of the same place are told as one line, the last one's."""
        return self

    @abstractmethod
    def apply(self, draft: Draft) -> None:
        """Make the change. Raises CannotMend, with the draft as it was."""

    def told(self, draft: Draft) -> str:
        """The change as a line, after all mends were made."""
        return self.words


@dataclass(frozen=True)
class Together(Mend):
    """Mends that are made all or not at all; site: None."""

    parts: tuple[Mend, ...]

    @property
    def words(self) -> str:
        """Those of the parts."""
        return "\n".join(one.words for one in self.parts)

    def apply(self, draft: Draft) -> None:
        """Make them, in a draft that holds them all."""
        for one in self.parts:
            one.apply(draft)
