"""The images that are checked: decoded, with the headers of their files."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onsight.audit.finding import Place
from onsight.audit.headers import Header
from onsight.data.index import SPLIT_NAMES, UNSPLIT, Problem
from onsight.data.pack import Pack
from onsight.data.sources.source import Source


@dataclass(frozen=True)
class Subject:
    """headers: by source row."""

    source: Source
    pack: Pack
    headers: Mapping[int, Header]

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by number."""
        return self.pack.index.classes

    @property
    def problems(self) -> list[Problem]:
        """The files that cannot be used."""
        return [*self.source.problems, *self.pack.problems]

    def counts(self) -> dict[str, int]:
        """Images of each class."""
        counts = np.bincount(self.pack.index.labels, minlength=len(self.classes)).tolist()
        return dict(zip(self.classes, counts, strict=True))

    def place(self, number: int) -> Place:
        """An image by its number in the pack."""
        index = self.pack.index
        return Place(
            index.locators[number],
            index.classes[index.labels[number]],
            "" if index.splits[number] == UNSPLIT else SPLIT_NAMES[index.splits[number]],
            number,
        )

    def header(self, number: int) -> Header | None:
        """The header of an image's file, if it could be read."""
        return self.headers.get(int(self.pack.sources[number]))
