"""Do rare classes count, and is a pair of classes that nothing distinguishes named?

    python benchmarks/imbalance.py CACHE [--budget 60] [--rounds 3] [--contender auto]

Both faults are planted in Fashion-MNIST. Rare classes: every other class has a hundredth of the
pictures; the default is compared with --class-weights none, in turn, by balanced accuracy on all
10,000 test pictures. Useless pair: one class is divided at random into two, in both parts;
results.json must name the two in confused_pairs, and no other pair as impossible to tell apart.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path

from contenders import ONSIGHT, TITLES, Outcome, run_contender
from few_pictures import link, link_class
from finished_folder import finished_folder
from harness import circumstances, interleave, table, write_section
from picture_sets import FASHION
from stand_ins import make_png

TWINS = ("twin a", "twin b")
DIVIDED = "8"  # bags, which nothing else resembles


def make_imbalanced(whole: Path, common: int, rare: int) -> Path:
    """Every other class has few training pictures; the test part is whole."""

    def fill(target: Path) -> None:
        link(whole / "test", target / "test")
        for number, place in enumerate(sorted((whole / "train").iterdir())):
            link_class(place, target / "train" / place.name, slice(rare if number % 2 else common))

    return finished_folder(whole.with_name(f"imbalanced-{common}-{rare}"), fill)


def make_twins(whole: Path, per_class: int) -> Path:
    """One class is two, each with every other of its pictures."""

    def fill(target: Path) -> None:
        for part in ("train", "test"):
            for place in (whole / part).iterdir():
                if place.name != DIVIDED:
                    link_class(place, target / part / place.name, slice(per_class))
            for number, name in enumerate(TWINS):
                every_other = slice(number, 2 * per_class, 2)
                link_class(whole / part / DIVIDED, target / part / name, every_other)

    return finished_folder(whole.with_name(f"twins-{per_class}"), fill)


def succeed(outcome: Outcome) -> Outcome:
    if outcome.failed:
        raise SystemExit(outcome.failed)
    return outcome


def weigh(folder: Path, options: argparse.Namespace) -> list[str]:
    """Lines on the balanced accuracy with and without class weights."""
    weights: dict[str, list[str]] = {"the default": [], "none": ["--class-weights", "none"]}
    found: dict[str, list[Outcome]] = {name: [] for name in weights}

    def balanced(name: str) -> float:
        words, seed = weights[name], len(found[name])
        outcome = run_contender(options.contender, folder, options.budget, words, seed)
        found[name].append(succeed(outcome))
        return 100 * outcome.facts["balanced_accuracy"]

    jobs = {name: partial(balanced, name) for name in weights}
    shares = interleave(jobs, options.rounds, warm_up=False)
    gaps = [mine - other for mine, other in zip(*shares.values(), strict=True)]
    rows = [
        [
            name,
            f"{statistics.median(shares[name]):.1f}%",
            f"{100 * statistics.median(run.accuracy for run in found[name]):.1f}%",
        ]
        for name in weights
    ]
    return [
        *table(["--class-weights", "balanced accuracy", "accuracy"], rows),
        "",
        f"In the same round, the default's balanced accuracy is {statistics.median(gaps):+.1f} "
        f"points ({min(gaps):+.1f} to {max(gaps):+.1f}, {len(gaps)} rounds) above that of none.",
    ]


def name_twins(folder: Path, options: argparse.Namespace) -> str:
    """A sentence on what the runs said about the planted pair."""
    named = others = 0
    for seed in range(options.rounds):
        outcome = succeed(run_contender(options.contender, folder, options.budget, (), seed))
        pairs = outcome.facts["confused_pairs"] or []
        useless = [sorted(pair["classes"]) for pair in pairs if pair["told_apart"] == "no"]
        named += list(TWINS) in useless
        others += sum(pair != list(TWINS) for pair in useless)
    return (
        f"Useless pair: named in {named} of {options.rounds} runs; other pairs said to be "
        f"impossible to tell apart: {others}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cache", type=Path)
    parser.add_argument("--data", type=Path, default=FASHION, help="Fashion-MNIST's IDX files")
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contender", choices=ONSIGHT, default="auto")
    parser.add_argument("--common", type=int, default=1000, help="pictures of a common class")
    parser.add_argument("--rare", type=int, default=10, help="pictures of a rare class")
    parser.add_argument("--twin", type=int, default=200, help="pictures of each class beside twins")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    whole = make_png(options.data, options.cache)
    lines = [
        "## Rare classes and a useless pair",
        "",
        circumstances("timm"),
        "",
        f"{TITLES[options.contender]}, {options.budget:g} s; five classes of {options.common:,} "
        f"training pictures and five of {options.rare:,}.",
        "",
        *weigh(make_imbalanced(whole, options.common, options.rare), options),
        "",
        name_twins(make_twins(whole, options.twin), options),
    ]
    write_section("imbalance", lines)


if __name__ == "__main__":
    main()
