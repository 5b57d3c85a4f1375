"""How long is it from process start until Fashion-MNIST's test accuracy reaches a target?

    python benchmarks/time_to_accuracy.py /usr/share/datasets/fashion-mnist

Onsight uses its recipe `fast`, and each peer a recipe of its own, all with a schedule made for the
target. Imports, reading and decoding, and the evaluation after each epoch are counted. The
contenders run in turn, in fresh processes.
"""

import argparse
import statistics
import sys
from pathlib import Path

from harness import circumstances, interleave, paired, run_json, table, write_section

PEERS = ("tensors", "accelerate", "lightning", "fastai", "keras")
TITLES = {
    "onsight": "Onsight",
    "tensors": "hand-written, tensors in memory",
    "accelerate": "Accelerate, the same net",
    "lightning": "Lightning, the same net",
    "fastai": "fastai, its SimpleCNN",
    "keras": "Keras, its MNIST example extended",
}
FOLDER = Path(__file__).parent / "peers"
HEADER = ["target", "contender", "seconds", "its seconds / Onsight's", "accuracy", "epochs"]


class Race:
    """The contenders on their way to one target."""

    def __init__(self, options, target):
        self.options, self.target = options, target
        self.facts: dict[str, list[dict]] = {}

    def reach(self, name):
        """1 / seconds, so that more is better, as elsewhere; a missed target counts all of them."""
        script = FOLDER / f"accuracy_{name}.py"
        words = ["--target", self.target, "--limit", self.options.limit]
        if self.options.epochs:
            words += ["--epochs", self.options.epochs]
        facts = run_json(*map(str, (sys.executable, script, self.options.data, *words)))
        self.facts.setdefault(name, []).append(facts)
        return 1 / facts["seconds_from_start"]

    def run(self):
        names = ("onsight", *self.options.peers)
        jobs = {name: lambda name=name: self.reach(name) for name in names}
        self.rates = interleave(jobs, self.options.rounds, warm_up=False)
        return self

    def rows(self):
        return [self.row(name) for name in self.rates]

    def row(self, name):
        facts = self.facts[name]
        seconds = [run["seconds_from_start"] for run in facts]
        reached = sum(run["reached"] for run in facts)
        median = f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
        if reached < len(facts):
            median += f"; reached in {reached} of {len(facts)} runs"
        ratio = "1" if name == "onsight" else str(paired(self.rates["onsight"], self.rates[name]))
        accuracy = f"{statistics.median(run['accuracy'] for run in facts):.2f}%"
        epochs = f"{len(facts[0]['accuracies'])} of {facts[0]['epochs']}"
        return [f"{self.target:g}%", TITLES[name], median, ratio, accuracy, epochs]


NOTE = (
    "The target is on the 10,000 test pictures for every contender: this compares times, and "
    "claims no accuracy. Each contender's number of epochs is in its script; it is our estimate, "
    "not the result of a search, so fewer may be enough for some. All train on the 60,000 training "
    "pictures and hold none out. A contender that misses the target counts with the time of its "
    "whole schedule."
)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder of Fashion-MNIST's IDX files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--targets", type=float, nargs="+", default=[91.0, 93.0])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--limit", type=float, default=900.0, help="most seconds per run")
    parser.add_argument("--epochs", type=int, default=0, help="for a trial; 0: each script's own")
    options = parser.parse_args()
    rows = [row for target in options.targets for row in Race(options, target).run().rows()]
    packages = ("accelerate", "lightning", "fastai", "keras")
    lines = ["## Time to accuracy", "", circumstances(*packages), "", *table(HEADER, rows)]
    write_section("time_to_accuracy", [*lines, "", NOTE])


if __name__ == "__main__":
    main()
