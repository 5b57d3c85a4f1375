"""check.csv: a row for each finding. The same file, edited, says which findings to ignore."""

import csv
from collections.abc import Iterable
from pathlib import Path

from onsight.audit.finding import Finding, Place
from onsight.errors import DataError
from onsight.report.csv_table import write_csv

_COLUMNS = tuple(Finding("", "", "", (Place(""),), 0.0).facts())


def write_findings(path: Path, findings: Iterable[Finding]) -> None:
    """Write check.csv. Raises DiskError."""
    write_csv(path, _COLUMNS, (tuple(one.facts().values()) for one in findings))


def read_ignored(path: Path) -> set[str]:
    """The ids in a CSV file with a column `id`, such as rows of check.csv. Raises DataError."""
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            rows = csv.DictReader(file)
            if "id" not in (rows.fieldnames or ()):
                raise DataError(f"{path} has no column id: keep the rows of check.csv to ignore")
            return {row["id"] for row in rows if row["id"]}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file: {error}") from error
