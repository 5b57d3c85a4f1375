"""A finding: what is wrong, or may be, with one image, two images or a class."""

import hashlib
from dataclasses import dataclass
from typing import Any

# Every kind of finding with its heading, gravest first.
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
# What --fail-on may name, and the kinds that it means.
GROUPS = {
    "leakage": ("leakage",),
    "unusable": ("unusable",),
    "twins": ("leakage", "two-labels", "identical", "near-duplicate"),
    "labels": ("two-labels", "label"),
    "classes": ("classes",),
    "quality": ("quality",),
}


@dataclass(frozen=True)
class Place:
    """An image, a file or a class that a finding is about.

    split: as given with the data, empty if none is; number: of the image in the pack, None for
    anything else.
    """

    path: str
    label: str = ""
    split: str = ""
    number: int | None = None


@dataclass(frozen=True)
class Finding:
    """kind: one of KINDS; what: a clause; training: what `onsight train` does about it.

    places: one, or two of the same content; score: from 0 to 1, how sure or how grave it is.
    """

    kind: str
    what: str
    training: str
    places: tuple[Place, ...]
    score: float

    @property
    def id(self) -> str:
        """The same in every check of the same files, whatever else is added to them."""
        kind = "copies" if self.kind in GROUPS["twins"] else self.kind
        parts = [kind, *sorted(place.path for place in self.places)]
        if self.kind == "quality":  # of which one image may have several
            parts.append(self.what.partition(" (")[0])
        text = "\0".join(parts).encode("utf-8", "surrogateescape")
        return hashlib.sha256(text).hexdigest()[:12]

    def facts(self) -> dict[str, Any]:
        """A row of check.csv."""
        first, *others = self.places
        other = others[0] if others else Place("")
        return {
            "id": self.id,
            "kind": self.kind,
            "what": self.what,
            "path": first.path,
            "label": first.label,
            "split": first.split,
            "other_path": other.path,
            "other_label": other.label,
            "other_split": other.split,
            "score": round(self.score, 4),
            "training": self.training,
        }
