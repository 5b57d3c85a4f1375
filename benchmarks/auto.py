"""Which settings, or which other libraries, give the best classifier in a given time?

    python benchmarks/auto.py DATA [--sets NAME ...] [--budgets 30 60 300] [--seeds 1 2 3]
        [--contenders auto sprint ...] [--out auto.jsonl]
    python benchmarks/auto.py --summary auto.jsonl

DATA holds datasets, such as those of auto_datasets.py and image_sets.py. The contenders are
`--model auto`, the networks that it chooses from, auto without some of its parts, and peers. Each
run is a process, timed from start to end. A block is a dataset, a budget and a seed; all contenders
run in it before the next block starts. The outcome of a run is appended to --out at once, and runs
already in that file are not repeated. --summary writes the tables of such a file into RESULTS.md.
Peers use the settings in peer_settings.json, or their defaults.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from auto_summary import summarize
from contenders import ALTERNATIVES, NAMES, Outcome, run_contender
from harness import Facts, circumstances, write_section

import onsight

SETTINGS = Path(__file__).parent / "peer_settings.json"
PACKAGES = ("timm", "fastai", "scikit-learn", "ultralytics")


class Key(NamedTuple):
    """The identity of a run; tree: git's hash of the source."""

    tree: str
    dataset: str
    budget: float
    seed: int
    contender: str


def list_runs(
    tree: str,
    sets: Sequence[str],
    budgets: Sequence[float],
    seeds: Sequence[int],
    contenders: Sequence[str],
) -> Iterator[Key]:
    """Yield all runs in order; within a block, the seed decides which contender goes first."""
    for seed, budget, dataset in product(seeds, budgets, sets):
        turn = seed % len(contenders)
        for contender in (*contenders[turn:], *contenders[:turn]):
            yield Key(tree, dataset, budget, seed, contender)


def measure(data: Path, runs: Sequence[Key], out: Path) -> None:
    """Execute the runs that are not in the file yet, and append each outcome to it."""
    done = {Key(*(line[name] for name in Key._fields)) for line in read_lines(out)}
    pending = [run for run in runs if run not in done]
    where = circumstances(*PACKAGES)
    for dataset in {run.dataset for run in pending}:
        read_files(data / dataset)
    for number, run in enumerate(pending, 1):
        folder = data / run.dataset
        settings = find_settings(run)
        outcome = run_contender(run.contender, folder, run.budget, run.seed, settings)
        append_line(out, run._asdict() | describe(outcome, folder) | {"circumstances": where})
        right = sum(outcome.correct.values()) / max(1, len(outcome.correct))
        result = outcome.error or f"{100 * right:.2f}% in {outcome.seconds:.1f} s"
        block = f"{run.dataset}, {run.budget:g} s, seed {run.seed}"
        print(f"{number}/{len(pending)} {block}, {run.contender}: {result}", file=sys.stderr)


def describe(outcome: Outcome, data: Path) -> Facts:
    """An outcome as the fields of a line, with one character per image."""
    return {
        "seconds": round(outcome.seconds, 2),
        "peak_bytes": outcome.peak_bytes,
        "images": len(outcome.correct),
        "correct": encode(outcome.correct, list_images(data)),
        "members": outcome.members,
        "error": outcome.error,
    }


def encode(correct: Mapping[str, bool], paths: Sequence[str]) -> str:
    """Encode paths as 1 (right), 0 (wrong) or - (not held out).

    Images inside a file that contains many have their own paths, which follow.
    """
    if not correct:
        return ""
    paths = [*paths, *sorted(correct.keys() - set(paths))]
    return "".join(str(int(correct[path])) if path in correct else "-" for path in paths)


def list_images(data: Path) -> list[str]:
    """The sorted paths, within the dataset, of the files that may be held out."""
    folder = data / "test" if (data / "test").is_dir() else data
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(data).as_posix() for path in files)


def read_files(folder: Path) -> None:
    """Read every file once, so that all contenders find it in the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.read_bytes()


def find_settings(run: Key) -> Sequence[str]:
    """A peer's tuned arguments for a dataset and a budget; empty if there are none."""
    known = json.loads(SETTINGS.read_text(encoding="utf-8")).get(run.dataset, {})
    arguments: list[str] = known.get(f"{run.budget:g}", {}).get(run.contender, [])
    return arguments


def hash_source() -> str:
    """Git's hash of Onsight's committed source, with a + if it has uncommitted changes."""
    git = ["git", "-C", str(Path(onsight.__file__).parents[1])]
    tree = subprocess.check_output([*git, "rev-parse", "HEAD:./"], text=True).strip()
    return tree + "+" * bool(subprocess.check_output([*git, "status", "--porcelain", "."]))


def read_lines(path: Path) -> list[Facts]:
    """The outcomes in a file; none if it does not exist."""
    if not path.exists():
        return []
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


def append_line(path: Path, line: Facts) -> None:
    """Append a line in one write, so that a file never ends in a partial line, and fsync it."""
    with path.open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")
        os.fsync(file.fileno())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="?", metavar="DATA")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="default: all in DATA")
    parser.add_argument("--budgets", type=float, nargs="+", default=[30.0, 60.0, 300.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    default = ["auto", *ALTERNATIVES]
    parser.add_argument("--contenders", nargs="+", choices=NAMES, default=default, metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("auto.jsonl"))
    parser.add_argument("--summary", type=Path, help="a file of such lines; nothing is run")
    options = parser.parse_args(arguments)
    if options.summary:
        return write_section("auto", summarize(read_lines(options.summary)))
    if options.data is None:
        parser.error("DATA or --summary is needed")
    sets = options.sets or sorted(path.name for path in options.data.iterdir() if path.is_dir())
    if missing := [name for name in sets if not (options.data / name).is_dir()]:
        parser.error(f"{options.data} has no {', '.join(missing)}")
    runs = list_runs(hash_source(), sets, options.budgets, options.seeds, options.contenders)
    return measure(options.data, list(runs), options.out)


if __name__ == "__main__":
    main()
