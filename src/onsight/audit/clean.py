"""A manifest of the images to train from: without unusable files, copies and contradictions."""

from pathlib import Path

import numpy as np

from onsight.audit.audit import Audit
from onsight.data.index import SPLIT_NAMES, UNSPLIT
from onsight.errors import OutputError
from onsight.report.csv_table import write_csv
from onsight.words import listed


def write_clean_manifest(audit: Audit, path: Path) -> str:
    """Write path,label,split of the images that are left, and say in a line what was left out.

    Of copies under one label the first stays, in the highest split; of copies under two labels,
    none. Labels that look wrong stay: a person must judge them. Raises OutputError for DATA whose
    images are no files, or where a file would be replaced; DiskError.
    """
    subject = audit.subject
    folder = subject.source.root if subject.source.root.is_dir() else subject.source.root.parent
    if subject.source.kind not in ("folders", "manifest", "names"):
        raise OutputError(
            f"--write-manifest lists files, but {audit.data} holds images inside others: "
            "unpack it first"
        )
    if path.exists():
        raise OutputError(f"{path} exists, and is left as it is: choose another name")
    dropped = _dropped(audit)
    index = subject.pack.index
    gone = np.zeros(len(index), bool)
    for numbers in dropped.values():
        gone[list(numbers)] = True
    rows = (
        (
            str(folder / index.locators[row]),
            index.classes[index.labels[row]],
            "" if index.splits[row] == UNSPLIT else SPLIT_NAMES[index.splits[row]],
        )
        for row in np.flatnonzero(~gone).tolist()
    )
    write_csv(path, ("path", "label", "split"), rows)
    left_out = [f"{len(audit.of('unusable')):,} unusable"]
    left_out += [f"{len(numbers):,} {what}" for what, numbers in dropped.items()]
    return f"{path}: {int((~gone).sum()):,} images; left out: {listed(left_out)}"


def _dropped(audit: Audit) -> dict[str, set[int]]:
    """Which images are left out, and why."""
    contradictions: set[int] = set()
    copies: set[int] = set()
    rank = {name: place for place, name in enumerate(("", *SPLIT_NAMES[1:]))}
    for finding in audit.findings:
        numbers = [place.number for place in finding.places if place.number is not None]
        if len(numbers) < 2:
            continue
        if len({place.label for place in finding.places}) > 1:
            contradictions.update(numbers)
            continue
        kept = max(finding.places, key=lambda place: (rank[place.split], -(place.number or 0)))
        copies.update(number for number in numbers if number != kept.number)
    return {"under two labels": contradictions, "copies": copies - contradictions}
