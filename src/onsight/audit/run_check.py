"""`onsight check`: check a dataset, print the summary, write the table, page and manifest."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from onsight.audit.audit import PAGE, TABLE, Audit, refuse_foreign_files
from onsight.audit.check import check
from onsight.audit.finding import GROUPS
from onsight.data.index import SPLIT_NAMES, UNSPLIT
from onsight.errors import ConfigError, OutputError, did_you_mean
from onsight.files import check_output, refuse_inside_data, user_path, write_csv
from onsight.report.console import Reporter
from onsight.text import joined


def run_check(
    data: str,
    *,
    out: Path | None,
    fail_on: str,
    write_manifest: Path | None,
    as_json: bool,
    **options: Any,
) -> bool:
    """Check DATA and write the result; return True if it has findings that fail_on names.

    options: as for `check`. Raises ConfigError, DataError, OutputError, DiskError.
    """
    groups = _parse_groups(fail_on)
    folder = out or Path("checks") / _folder_name(data)
    refuse_inside_data(folder, data, "../checks/first")
    refuse_foreign_files(folder)  # now rather than after the work
    for name in (PAGE, TABLE):
        check_output("--out", folder / name, data=data, list_to_ignore=options.get("ignore"))
    if write_manifest:
        _refuse_existing(write_manifest)
    reporter = Reporter()
    audit = check(data, reporter=reporter, **options)
    page = audit.save(folder)
    if write_manifest:
        reporter.say(write_clean_manifest(audit, write_manifest))
    failed = audit.failed_groups(groups)
    _print_result(audit, page, failed, as_json)
    return bool(failed)


def write_clean_manifest(audit: Audit, path: Path) -> str:
    """Write a manifest (path, label, split) of the images worth training on.

    Of copies under one label the first in the highest split stays; of copies under two labels,
    none. Labels that look wrong stay, because a person has to decide. Returns a line with the
    number of images left out. Raises OutputError for DATA whose images are not files, and rather
    than replace a file; DiskError.
    """
    source, index = audit.dataset.source, audit.dataset.pack.index
    folder = source.root if source.root.is_dir() else source.root.parent
    if source.kind not in ("folders", "manifest", "names"):
        raise OutputError(
            f"--write-manifest lists files, but {audit.data} has images inside other files: "
            "unpack it first"
        )
    _refuse_existing(path)
    dropped = _images_to_drop(audit)
    is_dropped = np.zeros(len(index), bool)
    for numbers in dropped.values():
        is_dropped[list(numbers)] = True
    rows = (
        (
            str(folder / index.locators[row]),
            index.classes[index.labels[row]],
            "" if index.splits[row] == UNSPLIT else SPLIT_NAMES[index.splits[row]],
        )
        for row in np.flatnonzero(~is_dropped).tolist()
    )
    write_csv(path, ("path", "label", "split"), rows)
    left_out = [f"{len(audit.of('unusable')):,} unusable"]
    left_out += [f"{len(numbers):,} {reason}" for reason, numbers in dropped.items()]
    return f"{path}: {int((~is_dropped).sum()):,} images; left out: {joined(left_out)}"


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise OutputError(f"{path} exists, and is left as it is: choose another name")


def _images_to_drop(audit: Audit) -> dict[str, set[int]]:
    """Return the numbers of the images to leave out, by reason."""
    contradictory: set[int] = set()
    copies: set[int] = set()
    rank = {name: position for position, name in enumerate(("", *SPLIT_NAMES[1:]))}
    for finding in audit.findings:
        numbers = [item.number for item in finding.items if item.number is not None]
        if len(numbers) < 2:
            continue
        if len({item.label for item in finding.items}) > 1:
            contradictory.update(numbers)
            continue
        kept = max(finding.items, key=lambda item: (rank[item.split], -(item.number or 0)))
        copies.update(number for number in numbers if number != kept.number)
    return {"under two labels": contradictory, "copies": copies - contradictory}


def _parse_groups(text: str) -> list[str]:
    """Return the groups of findings in the value of --fail-on. Raises ConfigError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in GROUPS:
            raise ConfigError(
                f"--fail-on {name}: choose from {joined(list(GROUPS))}.{did_you_mean(name, GROUPS)}"
            )
    return names


def _folder_name(data: str) -> str:
    """Return a name for the folder of results, derived from DATA."""
    name = user_path(data).absolute().name
    return name.partition(".")[0] or "data"


def _print_result(audit: Audit, page: Path, failed: list[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps({**audit.facts(), "failed": failed, "page": str(page)}))
        return
    console = Console(highlight=False, soft_wrap=True)
    for line in audit.lines():
        console.print(escape(line))
    console.print(escape(f"table: {page.with_name(TABLE)}"))
    console.print(escape(f"page: {page}"))
    if failed:
        console.print(escape(f"failed (--fail-on): {joined(failed)}"))
