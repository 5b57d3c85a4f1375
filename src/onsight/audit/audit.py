"""What a check found: findings, gravest first, as objects, lines, files and a page."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onsight.audit.finding import GROUPS, KINDS, Finding
from onsight.audit.subject import Subject
from onsight.files import user_path
from onsight.report.notebook import facts_table
from onsight.words import plural

_SHOWN = 3  # findings of each kind that the summary shows


@dataclass(frozen=True)
class Audit:
    """What `onsight.check` returns.

    data: DATA as given; files: how many are listed; images: how many of them can be used;
    ignored: findings left out because a person judged them right; notes: what was not checked.
    """

    data: str
    files: int
    images: int
    classes: dict[str, int]
    findings: tuple[Finding, ...]
    ignored: int
    notes: tuple[str, ...]
    seconds: float
    subject: Subject = field(repr=False)

    def of(self, kind: str) -> list[Finding]:
        """The findings of a kind, the surest or gravest first."""
        return [one for one in self.findings if one.kind == kind]

    def fails(self, groups: Collection[str]) -> list[str]:
        """Those of the groups, such as leakage, unusable and twins, that have a finding."""
        present = {one.kind for one in self.findings}
        return [group for group in groups if present.intersection(GROUPS[group])]

    def lines(self) -> Iterator[str]:
        """The summary, for a terminal."""
        can_be_used = f"{self.images:,} of {plural(self.files, 'file')} can be used"
        yield f"{can_be_used}, in {plural(len(self.classes), 'class', 'classes')}"
        for kind, heading in KINDS.items():
            found = self.of(kind)
            if not found:
                continue
            yield f"{heading}: {len(found):,} ({_reasons(found)})"
            yield from (f"    {_shown(one)}" for one in found[:_SHOWN])
            if len(found) > _SHOWN:
                yield f"    and {len(found) - _SHOWN:,} more"
        if not self.findings:
            yield "nothing found"
        if self.ignored:
            yield f"{plural(self.ignored, 'finding')} left out, as the list of ignored ones says"
        yield from self.notes

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"<Audit of {self.data}: {plural(len(self.findings), 'finding')}>"

    def _repr_html_(self) -> str:
        counts = {heading: len(self.of(kind)) for kind, heading in KINDS.items()}
        return facts_table(f"Audit of {self.data}, n = {self.images:,}", counts)

    def facts(self) -> dict[str, Any]:
        """Everything as plain values, as --json prints it."""
        return {
            "data": self.data,
            "files": self.files,
            "images": self.images,
            "classes": self.classes,
            "counts": {kind: len(self.of(kind)) for kind in KINDS},
            "ignored": self.ignored,
            "notes": list(self.notes),
            "seconds": self.seconds,
            "findings": [one.facts() for one in self.findings],
        }

    def save(self, folder: str | Path) -> Path:
        """Write check.csv and check.html into a folder, and return the page's path.

        Raises OutputError where that would replace another's file; DiskError.
        """
        from onsight.audit.page import TABLE, write_page
        from onsight.audit.table import write_findings

        place = user_path(folder)
        page = write_page(self, place)
        write_findings(place / TABLE, self.findings)
        return page


def _reasons(found: list[Finding]) -> str:
    """The most common reasons with their counts."""
    counts = Counter(one.what.partition(" (")[0].partition(":")[0] for one in found)
    common = [f"{count:,} {what}" for what, count in counts.most_common(_SHOWN)]
    rest = len(found) - sum(count for _, count in counts.most_common(_SHOWN))
    return "; ".join([*common, *([f"{rest:,} others"] if rest else [])])


def _shown(finding: Finding) -> str:
    paths = " = ".join(place.path for place in finding.places)
    return f"{paths}: {finding.what}" if finding.kind != "classes" else finding.what
