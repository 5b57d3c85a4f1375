"""Which setting is best for each peer of minute.py, for this set of pictures and this budget?

    python benchmarks/minute_tuning.py DATA [--budgets 30 60 300] [--only torchvision]

Every setting below runs once on four fifths of the training pictures and is judged by the others;
the test pictures are not looked at. The best two run once more with another seed, and the better on
average goes to minute_settings.json.
"""

import argparse
import json
import sys
import tempfile
from itertools import product
from pathlib import Path

from contenders import PEERS, run_contender
from few_pictures import link
from minute import SETTINGS

from onsight.files import write_json

HELD_OUT = 5  # one picture of so many
# Each peer's arguments with the values worth trying; all combinations run.
GRIDS = {
    "twenty-lines": {"--size": (64, 96, 128, 160), "--mirror": (0, 1), "--bf16": (0, 1)},
    "fastai": {"--size": (64, 96, 128), "--base-rate": (2e-3, 5e-3), "--keep-side": (0, 200)},
    "torchvision": {
        "--size": (64, 96, 128),
        "--learning-rate": (5e-4, 2e-3),
        "--keep-side": (0, 200),
        "--bf16": (0, 1),
    },
}


def settings(name: str) -> list[tuple[str, ...]]:
    flags = GRIDS[name]
    return [
        tuple(str(word) for pair in zip(flags, values, strict=True) for word in pair)
        for values in product(*flags.values())
    ]


def hold_out(data: Path, target: Path) -> Path:
    """A folder whose test part is a fifth of the training pictures of each class."""
    link(data / "train", target / "train")
    for place in (target / "train").iterdir():
        held = target / "test" / place.name
        held.mkdir(parents=True)
        for path in sorted(place.iterdir())[::HELD_OUT]:
            path.rename(held / path.name)
    return target


def tune(name: str, folder: Path, budget: float) -> tuple[str, ...]:
    """The best setting of a peer for a budget."""
    tried: dict[tuple[str, ...], list[float]] = {}

    def attempt(words: tuple[str, ...]) -> None:
        outcome = run_contender(name, folder, budget, words, seed=len(tried.get(words, [])))
        tried.setdefault(words, []).append(outcome.accuracy)
        told = outcome.failed or f"{outcome.accuracy:.1%} in {outcome.seconds:.1f} s"
        print(f"  {budget:g} s, {name} {' '.join(words)}: {told}", file=sys.stderr)

    for words in settings(name):
        attempt(words)
    best = sorted(tried, key=lambda words: tried[words][0], reverse=True)[:2]
    for words in best:
        attempt(words)
    return max(best, key=lambda words: sum(tried[words]))


def keep(data: str, budget: float, name: str, words: tuple[str, ...]) -> None:
    known = json.loads(SETTINGS.read_text()) if SETTINGS.exists() else {}
    known.setdefault(data, {}).setdefault(f"{budget:g}", {})[name] = list(words)
    write_json(SETTINGS, known)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--budgets", type=float, nargs="+", default=[30.0, 60.0, 300.0])
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = hold_out(options.data, Path(made))
        for budget, name in product(options.budgets, options.only):
            keep(options.data.name, budget, name, tune(name, folder, budget))


if __name__ == "__main__":
    main()
