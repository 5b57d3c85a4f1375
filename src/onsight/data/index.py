"""The index of a dataset: a row per image (locator, label, split), stored as flat arrays.

Text columns are one blob of UTF-8 plus offsets, so a million rows open instantly
and take tens of megabytes instead of a million Python strings.
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
    """An image or file that is not used, the stage that rejected it, and the reason."""

    path: str
    stage: str
    reason: str


class Row(NamedTuple):
    """An image as its source lists it."""

    locator: str
    label: str
    split: int = UNSPLIT  # UNSPLIT, TRAIN, VALIDATION or TEST


@dataclass(frozen=True)
class TextColumn(Sequence[str]):
    """A column of n strings in one block of memory."""

    blob: NDArray[np.uint8]  # UTF-8 of all strings
    offsets: NDArray[np.int64]  # (n + 1,)

    @classmethod
    def of(cls, texts: Iterable[str]) -> "TextColumn":
        """Pack strings; names that are not UTF-8 survive through surrogate escapes."""
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
        """Return the given rows, in the given order."""
        starts, ends = self.offsets[rows], self.offsets[rows + 1]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - starts)])
        blob = bytes(self.blob.data)
        parts = (blob[start:end] for start, end in zip(starts, ends, strict=True))
        return TextColumn(np.frombuffer(b"".join(parts), np.uint8), offsets)


@dataclass(frozen=True)
class Index:
    """The n images of a source."""

    locators: TextColumn
    labels: NDArray[np.int32]  # (n,) indices into classes
    splits: NDArray[np.int8]  # (n,) of UNSPLIT, TRAIN, VALIDATION and TEST
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.locators)

    @classmethod
    def of(cls, rows: Sequence[Row], order: Callable[[str], Any] | None = None) -> "Index":
        """Build from rows. Class names are NFC-normalised and sorted by `order` or code point."""
        names = [unicodedata.normalize("NFC", row.label) for row in rows]
        classes = tuple(sorted(set(names), key=order))
        codes = {name: code for code, name in enumerate(classes)}
        count = len(rows)
        return cls(
            TextColumn.of(row.locator for row in rows),
            np.fromiter((codes[name] for name in names), np.int32, count),
            np.fromiter((row.split for row in rows), np.int8, count),
            classes,
        )

    @classmethod
    def of_columns(
        cls,
        locators: TextColumn,
        labels: NDArray[np.int32],
        names: Sequence[str],
        splits: NDArray[np.int8],
    ) -> "Index":
        """Build from columns. labels: int32 (n,) into names, which may repeat or be unused."""
        normal = [unicodedata.normalize("NFC", name) for name in names]
        used = np.unique(labels).tolist()
        classes = tuple(sorted({normal[label] for label in used}))
        class_indices = {name: index for index, name in enumerate(classes)}
        codes = np.array([class_indices.get(name, 0) for name in normal], np.int32)
        return cls(locators, codes[labels], splits, classes)

    def take(self, rows: NDArray[np.int64]) -> "Index":
        """Return the given rows, in the given order, without classes that lose all their images."""
        remaining, labels = np.unique(self.labels[rows], return_inverse=True)
        return Index(
            self.locators.take(rows),
            labels.astype(np.int32),
            self.splits[rows],
            tuple(self.classes[label] for label in remaining),
        )
