"""Is `--model auto` as good as the best fixed choice, for few pictures and for many?

    python benchmarks/learning_curve.py DATA [--per-class 10 50 200] [--budget 60] [--rounds 3]
    python benchmarks/learning_curve.py --table learning_curve.jsonl

DATA has train/CLASS and test/CLASS (benchmarks/picture_sets.py: wallpapers --train 200, clip-art
--shrink 320, or the folder png of stand_ins.py). Of each class, that many training pictures are
used, or all if there are fewer; the test pictures are always all of them. Links to those used are
kept beside DATA. Each run's outcome is appended to --lines at once; --table puts the sections made
of such a file into RESULTS.md.
"""

import argparse
import json
from pathlib import Path

from contenders import ONSIGHT
from few_pictures import few_per_class
from harness import table, write_section
from minute import HEADER, NOTE, Line, measure, measured_on, rows_of


def section(title: str, found: dict[int, list[Line]]) -> list[str]:
    rows = [
        [f"{count:,}", *cells[1:]] for count, lines in found.items() for cells in rows_of(lines)
    ]
    where = measured_on([line for lines in found.values() for line in lines])
    header = ["pictures per class", *HEADER[1:]]
    return [title, "", *where, "", *table(header, rows), "", NOTE]


def write_tables(path: Path) -> None:
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    found: dict[tuple[str, float], dict[int, list[Line]]] = {}
    for line in lines:
        name, count = line["data"].removesuffix("-per-class").rsplit("-", 1)
        found.setdefault((name, line["budget"]), {}).setdefault(int(count), []).append(line)
    for (name, budget), by_count in found.items():
        write_curve(name, budget, by_count)


def write_curve(name: str, budget: float, found: dict[int, list[Line]]) -> None:
    title = f"## Few pictures and many, {budget:g} s: {name}"
    write_section(f"learning curve {name} {budget:g} s", section(title, found))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--per-class", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=ONSIGHT, default=list(ONSIGHT))
    parser.add_argument("--lines", type=Path, default=Path("learning_curve.jsonl"))
    parser.add_argument("--table", type=Path, help="such lines; nothing is run")
    options = parser.parse_args()
    if options.table:
        return write_tables(options.table)
    if options.data is None:
        parser.error("DATA or --table is needed")
    found = {
        count: measure(
            few_per_class(options.data, count),
            [options.budget],
            options.only,
            options.rounds,
            options.lines,
        )
        for count in options.per_class
    }
    write_curve(options.data.name, options.budget, found)
    return None


if __name__ == "__main__":
    main()
