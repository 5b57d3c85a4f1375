"""The index of a dataset: the locator, label and split of each image, as flat arrays.

Text columns are a blob of UTF-8 with offsets, so that a million rows open instantly and take tens
of megabytes rather than a million Python strings.

n images.
"""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16  # length of the digest of decoded pixels that identifies an image

UNSPLIT, TRAIN, VALIDATION, TEST = 0, 1, 2, 3
SPLIT_NAMES = ("unsplit", "train", "validation", "test")
SPLIT_WORDS = {
    "train": TRAIN,
    "training": TRAIN,
    "val": VALIDATION,
    "valid": VALIDATION,
    "validation": VALIDATION,
    "test": TEST,
    "testing": TEST,
}


class Problem(NamedTuple):
    """An image or file that is not used.

    Attributes:
        path: Its path.
        stage: The stage that rejected it.
        reason: The reason.
    """

    path: str
    stage: str
    reason: str


class Row(NamedTuple):
    """An image as listed by its source.

    Attributes:
        locator: The path, or another unique name.
        label: The name of the class.
        split: UNSPLIT, TRAIN, VALIDATION or TEST.
    """

    locator: str
    label: str
    split: int = UNSPLIT


@dataclass(frozen=True)
class TextColumn(Sequence[str]):
    """A column of strings in one block of memory.

    Attributes:
        blob: The UTF-8 of all strings.
        offsets: The start of each string and the end of the last one, (n + 1,).
    """

    blob: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "TextColumn":
        """Pack strings. Surrogate escapes preserve names that are not UTF-8."""
        encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
        lengths = np.fromiter((len(item) for item in encoded), np.int64, len(encoded))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> str:  # type: ignore[override]  # rows only, no slices
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        row %= len(self)
        start, end = self.offsets[row], self.offsets[row + 1]
        return self.blob[start:end].tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[row] for row in range(len(self)))

    def take(self, rows: NDArray[np.int64]) -> "TextColumn":
        """Select rows, in the order of the argument."""
        starts, ends = self.offsets[rows], self.offsets[rows + 1]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - starts)])
        blob = bytes(self.blob.data)
        parts = (blob[start:end] for start, end in zip(starts, ends, strict=True))
        return TextColumn(np.frombuffer(b"".join(parts), np.uint8), offsets)


@dataclass(frozen=True)
class Index:
    """The images of a source.

    Attributes:
        locators: Paths, or other unique names.
        labels: Class numbers, (n,).
        splits: UNSPLIT, TRAIN, VALIDATION or TEST, (n,).
        classes: The names of the classes, by number.
    """

    locators: TextColumn
    labels: NDArray[np.int32]
    splits: NDArray[np.int8]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.locators)

    @classmethod
    def of(cls, rows: Sequence[Row], order: Callable[[str], Any] | None = None) -> "Index":
        """Build an index from rows. order: as in `of_columns`."""
        return cls.of_columns(
            TextColumn.of(row.locator for row in rows),
            np.arange(len(rows), dtype=np.int32),
            [row.label for row in rows],
            np.fromiter((row.split for row in rows), np.int8, len(rows)),
            order,
        )

    @classmethod
    def of_columns(
        cls,
        locators: TextColumn,
        labels: NDArray[np.int32],
        names: Sequence[str],
        splits: NDArray[np.int8],
        order: Callable[[str], Any] | None = None,
    ) -> "Index":
        """Build an index from columns.

        Args:
            locators: Paths, or other unique names.
            labels: Indices into names, int32 (n,).
            names: Names of classes, which may repeat or be unused. They are NFC-normalised.
            splits: UNSPLIT, TRAIN, VALIDATION or TEST, (n,).
            order: The sort key of class names, by default their code points.
        """
        normal = [unicodedata.normalize("NFC", name) for name in names]
        used = np.unique(labels).tolist()
        classes = tuple(sorted({normal[label] for label in used}, key=order))
        class_indices = {name: index for index, name in enumerate(classes)}
        codes = np.array([class_indices.get(name, 0) for name in normal], np.int32)
        return cls(locators, codes[labels], splits, classes)

    def take(self, rows: NDArray[np.int64]) -> "Index":
        """Select rows, in the order of the argument. Classes without images are dropped."""
        remaining, labels = np.unique(self.labels[rows], return_inverse=True)
        return Index(
            self.locators.take(rows),
            labels.astype(np.int32),
            self.splits[rows],
            tuple(self.classes[label] for label in remaining),
        )
