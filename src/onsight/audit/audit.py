"""The result of a check: a summary, a table (check.csv) and a page (check.html)."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onsight.audit.dataset import CheckedDataset
from onsight.audit.finding import GROUPS, KINDS, AuditFinding, AuditItem
from onsight.data.pixels import to_pillow
from onsight.errors import OutputError
from onsight.files import has_mark, refuse_no_folder, user_path, write_csv
from onsight.report.html_page import (
    InlineImage,
    inline_thumbnail,
    page_template,
    write_page,
)
from onsight.text import notebook_table, plural

PAGE, TABLE = "check.html", "check.csv"

_SUMMARY_FINDINGS = 3  # findings of each kind in the summary
_PAGE_FINDINGS = 48  # findings of each kind on the page
_SIDE = 128  # pixels of the longer side of an image on the page, at most
_TINY = 64  # pixels: images up to this size are stored without loss
_MARK = b'<meta name="generator" content="onsight check">'
_COLUMNS = tuple(AuditFinding("", "", "", (AuditItem(""),), 0.0).facts())


@dataclass(frozen=True)
class Audit:
    """The result of `onsight.check`; `print` shows its summary.

    Attributes:
        data: DATA as given.
        files: The number of files listed.
        images: The number of files that can be used.
        classes: The number of images of each class.
        findings: All findings, most serious first.
        ignored: The number of findings omitted on request.
        notes: How labels were checked, or why they were not.
        seconds: How long the check took.
        dataset: The images that were checked.
    """

    data: str
    files: int
    images: int
    classes: dict[str, int]
    findings: tuple[AuditFinding, ...]
    ignored: int
    notes: tuple[str, ...]
    seconds: float
    dataset: CheckedDataset = field(repr=False)

    def of(self, kind: str) -> list[AuditFinding]:
        """Return the findings of a kind, most certain or most serious first."""
        return [finding for finding in self.findings if finding.kind == kind]

    def failed_groups(self, groups: Collection[str]) -> list[str]:
        """Return the groups (such as leakage or duplicates) in which there are findings."""
        present = {finding.kind for finding in self.findings}
        return [group for group in groups if present.intersection(GROUPS[group])]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the summary for a terminal."""
        usable = f"{self.images:,} of {plural(self.files, 'file')} can be used"
        yield f"{usable}, in {plural(len(self.classes), 'class', 'classes')}"
        for kind, heading in KINDS.items():
            findings = self.of(kind)
            if not findings:
                continue
            yield f"{heading}: {len(findings):,}{_count_descriptions(findings)}"
            yield from (
                f"    {_format_finding(finding)}" for finding in findings[:_SUMMARY_FINDINGS]
            )
            if len(findings) > _SUMMARY_FINDINGS:
                yield f"    and {len(findings) - _SUMMARY_FINDINGS:,} more"
        if not self.findings:
            yield "no problems found"
        if self.ignored:
            yield f"{plural(self.ignored, 'finding')} ignored (--ignore)"
        yield from self.notes

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"<Audit of {self.data}: {plural(len(self.findings), 'finding')}>"

    def _repr_html_(self) -> str:
        counts = {heading: len(self.of(kind)) for kind, heading in KINDS.items()}
        return notebook_table(f"Audit of {self.data}, n = {self.images:,}", counts)

    def facts(self) -> dict[str, Any]:
        """Return everything as plain values, as printed by --json."""
        return {
            "data": self.data,
            "files": self.files,
            "images": self.images,
            "classes": self.classes,
            "counts": {kind: len(self.of(kind)) for kind in KINDS},
            "ignored": self.ignored,
            "notes": list(self.notes),
            "seconds": self.seconds,
            "findings": [finding.facts() for finding in self.findings],
        }

    def save(self, folder: str | Path) -> Path:
        """Write check.csv and check.html into a folder, and return the path of the page.

        Raises:
            OutputError: That would replace files that were not written by a check.
            DiskError: A file cannot be written.
        """
        path = user_path(folder)
        check_not_foreign(path)
        page = page_template("onsight.audit", "check.html.jinja").render(_make_page_content(self))
        write_page(path / PAGE, page)
        rows = [finding.facts() for finding in self.findings]
        write_csv(path / TABLE, _COLUMNS, (tuple(row.values()) for row in rows))
        return path / PAGE


def check_not_foreign(folder: Path) -> None:
    """Raise OutputError if check.html or check.csv in a folder was not written by a check."""
    page, table = folder / PAGE, folder / TABLE
    refuse_no_folder(folder)
    if (page.exists() or table.exists()) and not has_mark(page, _MARK):
        raise OutputError(
            f"{folder} has a {PAGE if page.exists() else TABLE} that was not written by a check, "
            "and is left as it is; choose another folder with --out"
        )


def _count_descriptions(findings: list[AuditFinding]) -> str:
    """Return the most common descriptions in brackets, without their figures, with their counts.

    Nothing if all are the same: the findings follow.
    """
    counts = Counter(
        finding.description.partition(" (")[0].partition(":")[0] for finding in findings
    )
    if len(counts) == 1:
        return ""
    common = counts.most_common(_SUMMARY_FINDINGS)
    rest = len(findings) - sum(count for _, count in common)
    parts = [f"{description}: {count:,}" for description, count in common]
    return f" ({'; '.join([*parts, *([f'others: {rest:,}'] if rest else [])])})"


def _format_finding(finding: AuditFinding) -> str:
    if finding.kind == "classes" and len(finding.items) > 1:  # the description names both
        return finding.description
    paths = " = ".join(item.path for item in finding.items)
    return f"{paths}: {finding.description}"


def _make_page_content(audit: Audit) -> dict[str, Any]:
    """Return the variables of the page's template."""
    sections = []
    for kind, heading in KINDS.items():
        findings = audit.of(kind)
        if findings:
            cards = [_make_card(audit.dataset, finding) for finding in findings[:_PAGE_FINDINGS]]
            section = {"kind": kind, "heading": heading, "count": len(findings), "shown": cards}
            sections.append(section)
    classes = sorted(audit.classes.items(), key=lambda pair: pair[1])
    return {"mark": _MARK.decode(), "audit": audit, "sections": sections, "classes": classes}


def _make_card(dataset: CheckedDataset, finding: AuditFinding) -> dict[str, Any]:
    images = [{"item": item, "thumbnail": _make_thumbnail(dataset, item)} for item in finding.items]
    return {"finding": finding, "images": images}


def _make_thumbnail(dataset: CheckedDataset, item: AuditItem) -> InlineImage | None:
    """Return a small image for the page, or None for a file or a class."""
    if item.index is None:
        return None
    pixels = dataset.pack.pixels[dataset.pack.rows[item.index]]
    image = to_pillow(pixels)
    header = dataset.header(item.index)
    if header:  # restore its proportions: all packed images have the same shape
        scale = max(image.size) / max(header.height, header.width)
        image = image.resize(
            (max(1, round(scale * header.width)), max(1, round(scale * header.height)))
        )
    return inline_thumbnail(image, _SIDE, lossless_side=_TINY)
