"""Which system gives the best classifier within 30 seconds, a minute, five minutes?

    python benchmarks/minute.py DATA [--budgets 30 60 300] [--rounds 3] [--only auto fastai]
    python benchmarks/minute.py --table minute.jsonl

DATA has train/CLASS and test/CLASS; benchmarks/image_sets.py makes some. Onsight alone, choosing,
with each of its choices forced, and the peers, in turn, each as a process from start to end. The
peers' settings come from minute_settings.json. Each run's outcome is
appended to --lines at once; --table puts the section made of such a file into RESULTS.md.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from contenders import NAMES, TITLES, run_contender, warm_up
from harness import Facts, circumstances, interleave, table, write_section

from onsight.evaluation.statistics import wilson
from onsight.text import fixed_percent

SETTINGS = Path(__file__).parent / "minute_settings.json"
PACKAGES = ("timm", "fastai", "scikit-learn")
HEADER = ["budget", "contender", "accuracy", "95% interval", "lead of auto, in points", "seconds"]
NOTE = (
    "Accuracy is the median run's share of the test images that are right, with the lowest and "
    "the highest run, and that share's Wilson interval. The lead is the accuracy of `--model auto` "
    "less the contender's in the same round: its median, lowest and highest, and the number of "
    "rounds. Seconds are from process start to process end. Peers ran with the settings in "
    "minute_settings.json, those that are not there with their defaults."
)


def settings_of(data: str, budget: float, name: str) -> list[str]:
    """A peer's tuned arguments for a set and a budget; empty if there are none."""
    known = json.loads(SETTINGS.read_text()) if SETTINGS.exists() else {}
    words: list[str] = known.get(data, {}).get(f"{budget:g}", {}).get(name, [])
    return words


def measure(
    data: Path, budgets: Sequence[float], names: Sequence[str], rounds: int, kept: Path
) -> list[Facts]:
    """Run all contenders with all budgets, in interleaved rounds; each run is kept at once."""
    where = circumstances(*PACKAGES)
    lines: list[Facts] = []
    warm_up(data)

    def run(name: str, budget: float) -> float:
        words = settings_of(data.name, budget, name)
        number = sum((line["contender"], line["budget"]) == (name, budget) for line in lines)
        outcome = run_contender(name, data, budget, words, seed=number)
        line = {"data": data.name, "budget": budget, "contender": name, "round": number}
        line |= {"settings": words, "circumstances": where, "accuracy": outcome.accuracy}
        lines.append(line | vars(outcome))
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(lines[-1]) + "\n")
        if outcome.failed:
            print(f"  {name} failed: {outcome.failed}", file=sys.stderr)
        return 100 * outcome.accuracy

    for budget in budgets:
        jobs = {name: partial(run, name, budget) for name in names}
        interleave(jobs, rounds, warm_up=False)
    return lines


def rows_of(lines: list[Facts]) -> list[list[str]]:
    """A row for each budget and contender, from the lines of one set."""
    rows = []
    for budget in sorted({line["budget"] for line in lines}):
        runs = {
            name: [line for line in lines if line["budget"] == budget and line["contender"] == name]
            for name in NAMES
        }
        rows += [row(budget, name, runs) for name in NAMES if runs[name]]
    return rows


def row(budget: float, name: str, runs: dict[str, list[Facts]]) -> list[str]:
    sound = [line for line in runs[name] if not line["failed"]]
    start = [f"{budget:g} s", TITLES[name]]
    if not sound:
        return [*start, f"failed: {runs[name][-1]['failed']}", "", "", ""]
    shares = sorted(line["accuracy"] for line in sound)
    middle = statistics.median_low(shares)
    n = sound[0]["n"]
    accuracy = fixed_percent(middle)
    if len(shares) > 1:
        accuracy += f" ({fixed_percent(shares[0])} to {fixed_percent(shares[-1])})"
    if len(sound) < len(runs[name]):
        accuracy += f"; {len(runs[name]) - len(sound)} of {len(runs[name])} runs failed"
    low, high = (fixed_percent(end) for end in wilson(round(middle * n), n))
    lead = "" if name == "auto" else lead_of(runs["auto"], sound)
    return [*start, accuracy, f"{low} to {high}, n = {n:,}", lead, spread(sound)]


def lead_of(ours: list[Facts], theirs: list[Facts]) -> str:
    """How many points our accuracy is above theirs, round by round."""
    mine = {line["round"]: line["accuracy"] for line in ours if not line["failed"]}
    gaps = [
        100 * (mine[line["round"]] - line["accuracy"]) for line in theirs if line["round"] in mine
    ]
    if not gaps:
        return ""
    return f"{statistics.median(gaps):+.1f} ({min(gaps):+.1f} to {max(gaps):+.1f}, {len(gaps)})"


def spread(lines: list[Facts]) -> str:
    seconds = [line["seconds"] for line in lines]
    return f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"


def section(data: str, lines: list[Facts]) -> list[str]:
    title = f"## The best classifier in a given time: {data}"
    return [title, "", *measured_on(lines), "", *table(HEADER, rows_of(lines)), "", NOTE]


def measured_on(lines: list[Facts]) -> list[str]:
    return sorted({line["circumstances"] for line in lines})


def write_tables(path: Path) -> None:
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    lines.sort(key=lambda line: line["data"])
    for data, group in groupby(lines, key=lambda line: line["data"]):
        write_section(f"minute {data}", section(data, list(group)))


def summary(lines: list[Facts]) -> str:
    """The median accuracy of every contender by budget, as JSON."""
    shares: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        if not line["failed"]:
            budget = shares.setdefault(f"{line['budget']:g}", {})
            budget.setdefault(line["contender"], []).append(line["accuracy"])
    return json.dumps(
        {
            budget: {name: statistics.median(found) for name, found in runs.items()}
            for budget, runs in shares.items()
        }
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--budgets", type=float, nargs="+", default=[30.0, 60.0, 300.0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--lines", type=Path, default=Path("minute.jsonl"))
    parser.add_argument("--table", type=Path, help="such lines; nothing is run")
    options = parser.parse_args(arguments)
    if options.table:
        return write_tables(options.table)
    if options.data is None:
        parser.error("DATA or --table is needed")
    lines = measure(options.data, options.budgets, options.only, options.rounds, options.lines)
    print("\n".join(table(HEADER, rows_of(lines))))
    print(summary(lines))
    return None


if __name__ == "__main__":
    main()
