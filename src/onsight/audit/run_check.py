"""The command: check, print the summary, write the files."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from onsight.audit.audit import Audit
from onsight.audit.check import check
from onsight.audit.clean import write_clean_manifest
from onsight.audit.finding import GROUPS
from onsight.audit.page import NAME, TABLE, check_place
from onsight.errors import ConfigError, OutputError, did_you_mean
from onsight.files import check_output, refuse_inside_data, user_path
from onsight.report.console import Reporter
from onsight.words import listed


def run_check(
    data: str,
    *,
    out: Path | None,
    fail_on: str,
    write_manifest: Path | None,
    as_json: bool,
    **asked: Any,
) -> bool:
    """Check DATA and write what was found; True if it has what fail_on names.

    asked: as for `check`. Raises ConfigError, DataError, OutputError, DiskError.
    """
    groups = _groups(fail_on)
    folder = out or Path("checks") / _name(data)
    refuse_inside_data(folder, data, "../checks/first")
    check_place(folder)  # before the work
    for name in (NAME, TABLE):
        check_output("--out", folder / name, data=data, list_to_ignore=asked.get("ignore"))
    if write_manifest and write_manifest.exists():
        raise OutputError(f"{write_manifest} exists, and is left as it is: choose another name")
    reporter = Reporter()
    audit = check(data, reporter=reporter, **asked)
    page = audit.save(folder)
    if write_manifest:
        reporter.say(write_clean_manifest(audit, write_manifest))
    failed = audit.fails(groups)
    _show(audit, page, failed, as_json)
    return bool(failed)


def _groups(text: str) -> list[str]:
    """The groups of findings that --fail-on names. Raises ConfigError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in GROUPS:
            raise ConfigError(
                f"--fail-on names '{name}', which is none of {listed(list(GROUPS))}."
                f"{did_you_mean(name, GROUPS)}"
            )
    return names


def _name(data: str) -> str:
    """DATA's name as that of a folder."""
    name = user_path(data).absolute().name
    return name.partition(".")[0] or "data"


def _show(audit: Audit, page: Path, failed: list[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps({**audit.facts(), "failed": failed, "page": str(page)}))
        return
    console = Console(highlight=False, soft_wrap=True)
    for line in audit.lines():
        console.print(escape(line))
    console.print(escape(f"table: {page.with_name('check.csv')}"))
    console.print(escape(f"page: {page}"))
    if failed:
        console.print(escape(f"found, as --fail-on says: {listed(failed)}"))
