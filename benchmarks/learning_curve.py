"""Is `--model auto` as good as the best fixed choice, for few pictures and for many?

    python benchmarks/learning_curve.py DATA [--per-class 10 50 200] [--budget 60] [--rounds 3]

DATA has train/CLASS and test/CLASS (benchmarks/picture_sets.py: wallpapers --train 200, clip-art
--shrink 320, or the folder png of stand_ins.py). Of each class, that many training pictures are
used, or all if there are fewer; the test pictures are always all of them. Links to those used are
kept beside DATA. Each run's outcome is appended to --lines at once.
"""

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--per-class", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=ONSIGHT, default=list(ONSIGHT))
    parser.add_argument("--lines", type=Path, default=Path("learning_curve.jsonl"))
    options = parser.parse_args()
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
    name = f"learning curve {options.data.name} {options.budget:g} s"
    title = f"## Few pictures and many, {options.budget:g} s: {options.data.name}"
    write_section(name, section(title, found))


if __name__ == "__main__":
    main()
