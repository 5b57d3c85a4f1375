"""How often is `onsight lint` right about public training scripts?

    python benchmarks/lint_public.py FOLDER [--scripts SCRIPTS.csv] > findings.csv
    python benchmarks/lint_public.py --verdicts benchmarks/lint_public_verdicts.csv

FOLDER holds a checkout of each repository as OWNER+NAME, at the commit in lint_public_scripts.csv.
The first command reads every script there, and prints each finding once, as a line of CSV with an
empty verdict. A person fills in the verdicts: right, arguable or wrong. The second command prints
the precision with Wilson's interval, counting arguable findings as not right. It does so for the
scripts that the rules were tuned on, and for held-out ones, for which no rule was changed.

For some scripts, a person has also labelled the mistakes before the rules were applied. Mistakes
without a finding have the verdict missed, and right findings that the person did not list have a
reason. For these scripts, the recall is printed as well.
"""

import argparse
import csv
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from onsight.evaluation.statistics import wilson
from onsight_lint.errors import ReadError
from onsight_lint.read import read_script

HERE = Path(__file__).parent
COLUMNS = ("sample", "repo", "file", "line", "rule", "verdict", "reason")


def read_all(folder: Path, scripts: Path) -> None:
    """Print the findings in all scripts as CSV, and what could not be read to stderr."""
    rows, seconds, unread = set(), [], []
    for script in csv.DictReader(scripts.open(encoding="utf-8")):
        home = folder / script["repo"].replace("/", "+")
        begin = time.process_time()
        try:
            for found in read_script(home / script["path"]):
                rows.add(
                    (
                        script["sample"],
                        script["repo"],
                        str(found.file.relative_to(home)),
                        found.line,
                        found.rule,
                    )
                )
        except ReadError as error:
            unread.append(str(error))
        seconds.append(time.process_time() - begin)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(COLUMNS)
    out.writerows((*row, "", "") for row in sorted(rows))
    print(*unread, sep="\n", file=sys.stderr)
    print(
        f"{len(seconds)} scripts, {len(unread)} not read, {len(rows)} findings, "
        f"{sum(seconds):.0f} s of CPU time, at most {max(seconds):.1f} s per script",
        file=sys.stderr,
    )


def show_verdicts(verdicts: Path) -> None:
    """Print the precision over all rules and the verdicts of each rule, for each sample."""
    rows = list(csv.DictReader(verdicts.open(encoding="utf-8")))
    for sample in sorted({row["sample"] for row in rows}):
        print(f"-- {sample}")
        _show_sample([row for row in rows if row["sample"] == sample])


def _show_sample(rows: list[dict[str, str]]) -> None:
    counts = Counter(row["verdict"] for row in rows)
    right, missed = counts["right"], counts.pop("missed", 0)
    print("precision", _share(right, counts.total()), counts)
    if missed:
        labelled = sum(row["verdict"] == "right" and not row["reason"] for row in rows)
        print("recall", _share(labelled, labelled + missed))
    for rule in sorted({row["rule"] for row in rows}):
        print(rule, dict(Counter(row["verdict"] for row in rows if row["rule"] == rule)))


def _share(part: int, whole: int) -> str:
    low, high = wilson(part, whole)
    return f"{part} of {whole}: {part / whole:.3f} ({low:.3f} to {high:.3f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--scripts", type=Path, default=HERE / "lint_public_scripts.csv")
    parser.add_argument("--verdicts", type=Path)
    args = parser.parse_args(arguments)
    if args.verdicts:
        show_verdicts(args.verdicts)
    elif args.folder:
        read_all(args.folder, args.scripts)
    else:
        parser.error("give a FOLDER to read, or --verdicts")


if __name__ == "__main__":
    main()
