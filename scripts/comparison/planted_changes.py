"""Small changes of behaviour that the comparison must report; each is planted in a copy of src."""

from typing import NamedTuple


class PlantedChange(NamedTuple):
    """A text that occurs once in a file, what replaces it, and the scenario that reports it."""

    file: str
    text: str
    replacement: str
    scenario: str


PLANTED_CHANGES: tuple[PlantedChange, ...] = ()
