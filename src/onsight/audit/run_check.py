"""`onsight check`: check a dataset, print the summary, write the table, page and manifest."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape

from onsight.audit.audit import PAGE, TABLE, Audit, check_not_foreign
from onsight.audit.check import check
from onsight.audit.finding import GROUPS
from onsight.audit.images import SPLIT_ORDER
from onsight.errors import ConfigError, OutputError, did_you_mean
from onsight.files import (
    check_output,
    csv_text,
    refuse_inside_data,
    user_path,
    write_atomically,
)
from onsight.report.console import Reporter, TextConsole
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
    """Check DATA, write the results and print the summary.

    Args:
        data: The images to check.
        out: The folder for the table and the page; by default one named after the data.
        fail_on: Groups of findings, separated by commas.
        write_manifest: The manifest to write, if any.
        as_json: Whether to print the result as JSON.
        **options: Arguments of `check`.

    Returns:
        Whether there are findings of the groups in fail_on.

    Raises:
        ConfigError, DataError, OutputError, DiskError: As `check` and `write_clean_manifest` do.
    """
    groups = _parse_groups(fail_on)
    # By default named after DATA, but not hidden; the suffix stays, as images.zip is not images/.
    folder = out or Path("checks") / (user_path(data).absolute().name.lstrip(".") or "data")
    refuse_inside_data(folder, data, "../checks/first")
    check_not_foreign(folder)  # before any work
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
    again = "" if write_manifest else _repeat_reading_options(options)
    _print_result(audit, page, failed, as_json, shlex.quote(str(write_manifest or data)) + again)
    return bool(failed)


def write_clean_manifest(audit: Audit, path: Path) -> str:
    """Write a manifest (path, label, split) of the images worth training on.

    Of copies under one label, only the first in the highest split is included; of copies under
    two labels, none. Images whose labels look wrong are included, because a person has to decide.

    Returns:
        A line with the numbers of excluded images.

    Raises:
        OutputError: The images are not separate files, or the manifest exists.
        DiskError: The manifest cannot be written.
    """
    source = audit.dataset.source
    folder = source.root if source.root.is_dir() else source.root.parent
    if source.kind not in ("folders", "manifest", "names"):
        raise OutputError(
            f"--write-manifest lists files, but {audit.data} has images inside other files: "
            "unpack it first"
        )
    _refuse_existing(path)
    dropped = _find_images_to_drop(audit)
    kept = sorted(set(range(audit.images)).difference(*dropped.values()))
    items = map(audit.dataset.item, kept)
    rows = [(str(folder / item.path), item.label, item.split) for item in items]
    # Exact labels, also those that a spreadsheet would take for a formula: programs read this.
    text = csv_text([("path", "label", "split"), *rows])
    write_atomically(path, text.encode("utf-8", "surrogateescape"))
    excluded = [f"{len(audit.of('unusable')):,} unusable"]
    excluded += [f"{len(indices):,} {reason}" for reason, indices in dropped.items()]
    return f"{path}: {len(rows):,} images; excluded: {joined(excluded)}"


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise OutputError(f"{path} exists, and is left as it is: choose another name")


def _find_images_to_drop(audit: Audit) -> dict[str, set[int]]:
    """Return the indices of the images to exclude, by reason."""
    contradictory: set[int] = set()
    copies: set[int] = set()
    for finding in audit.findings:
        indices = [item.index for item in finding.items if item.index is not None]
        if len(indices) < 2:
            continue
        if len({item.label for item in finding.items}) > 1:
            contradictory.update(indices)
            continue
        kept = max(
            finding.items, key=lambda item: (SPLIT_ORDER.index(item.split), -(item.index or 0))
        )
        copies.update(index for index in indices if index != kept.index)
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


def _repeat_reading_options(options: Mapping[str, Any]) -> str:
    """Return the options that training needs to read the same images, as they are typed."""
    usual = {"data_format": "auto", "label": "", "label_from": "", "cache_folder": ""}
    words = [
        f" --{name.replace('_', '-')} {shlex.quote(options[name])}"
        for name, value in usual.items()
        if options.get(name, value) != value
    ]
    return "".join(words) + " --crop-boxes" * bool(options.get("crop_boxes"))


def _print_result(
    audit: Audit, page: Path, failed: list[str], as_json: bool, to_train: str
) -> None:
    if as_json:
        print(json.dumps({**audit.facts(), "failed": failed, "page": str(page)}))
        return
    console = TextConsole(soft_wrap=True)
    for line in audit.lines():
        console.print(escape(line))
    console.print(escape(f"table: {page.with_name(TABLE)}"))
    console.print(escape(f"page: {page}"))
    if failed:
        console.print(escape(f"failed (--fail-on): {joined(failed)}"))
    else:
        console.print(escape(f"next: onsight train {to_train}"))
