"""A finding: something wrong, or probably wrong, with an image, a pair of images or a class."""

import hashlib
from dataclasses import dataclass
from typing import Any

# Every kind of finding with its heading, most serious first.
KINDS = {
    "leakage": "Copies on both sides of a split",
    "two-labels": "The same image under two labels",
    "label": "Labels that look wrong",
    "unusable": "Files that cannot be used",
    "identical": "Identical images",
    "near-duplicate": "Near-duplicates",
    "classes": "Classes",
    "quality": "Images that are hard to learn from",
}
# The values of --fail-on, and the kinds that each includes.
GROUPS = {
    "leakage": ("leakage",),
    "unusable": ("unusable",),
    "duplicates": ("leakage", "two-labels", "identical", "near-duplicate"),
    "labels": ("two-labels", "label"),
    "classes": ("classes",),
    "quality": ("quality",),
}


@dataclass(frozen=True)
class AuditItem:
    """An image, a file or a class that a finding is about."""

    path: str  # path of the file, or name of the class
    label: str = ""
    split: str = ""  # split that came with the data, if any
    index: int | None = None  # index of the image in the pack; None for a file or class


@dataclass(frozen=True)
class AuditFinding:
    """Something that `onsight check` found."""

    kind: str  # one of KINDS
    description: str  # one clause, with figures in parentheses
    in_training: str  # what `onsight train` does about it
    items: tuple[AuditItem, ...]  # one, or two with the same content
    score: float  # certainty or severity from 0 to 1; orders findings of a kind

    @property
    def id(self) -> str:
        """An identifier that stays the same as long as the files keep their names."""
        kind = "copies" if self.kind in GROUPS["duplicates"] else self.kind
        parts = [kind, *sorted(item.path for item in self.items)]
        if self.kind == "quality":  # an image can have several
            parts.append(self.description.partition(" (")[0])
        text = "\0".join(parts).encode("utf-8", "surrogateescape")
        return hashlib.sha256(text).hexdigest()[:12]

    def facts(self) -> dict[str, Any]:
        """Return a row of check.csv."""
        first, *others = self.items
        other = others[0] if others else AuditItem("")
        return {
            "id": self.id,
            "kind": self.kind,
            "description": self.description,
            "path": first.path,
            "label": first.label,
            "split": first.split,
            "other_path": other.path,
            "other_label": other.label,
            "other_split": other.split,
            "score": round(self.score, 4),
            "in_training": self.in_training,
        }
