"""How close is Onsight's LeNet training to the limit of its own step, and to a hand-written loop?

    python benchmarks/lenet_step.py /usr/share/datasets/fashion-mnist

There are three contenders at each batch size, on files like CIFAR-10's: Onsight through
`onsight.train`; its own step on one constant batch, which is the limit; and a hand-written loop
over tensors in memory, with the threads and memory format that were fastest in a short search.
Every contender is a new process in every round.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from harness import circumstances, interleave, paired, run_json, table, write_section
from image_files import make_packed

from onsight.text import plural
from onsight_explain.threads import usable_cores

SCRIPTS = Path(__file__).parent / "peers"
ONSIGHT, LIMIT, BY_HAND = "onsight", "limit", "tensors"
TITLES = {ONSIGHT: "Onsight", LIMIT: "the limit", BY_HAND: "hand-written, tensors in memory"}
MIN_STEPS = 60
HEADER = [
    "batch",
    "contender (its best setting)",
    "images/s",
    "Onsight's rate / this rate, median (low to high)",
    "mean loss at step",
]


@dataclass(frozen=True)
class Setting:
    """The settings of a contender."""

    threads: int
    channels_last: int = 0

    def arguments(self) -> list[str]:
        """The arguments that every script takes."""
        return [
            argument
            for name, value in asdict(self).items()
            for argument in (f"--{name.replace('_', '-')}", str(value))
        ]

    def __str__(self) -> str:
        return plural(self.threads, "thread") + ", channels last" * self.channels_last


class Case:
    """The contenders at one batch size."""

    def __init__(self, data: Path, images: int, batch_size: int, options: argparse.Namespace):
        self.data, self.batch_size, self.options = data, batch_size, options
        self.max_steps = images // batch_size  # at most one epoch
        self.losses: dict[str, list[float]] = {}

    def run(self, name: str, setting: Setting, *arguments: object) -> dict[str, Any]:
        """Run a contender; returns its results."""
        script = SCRIPTS / f"lenet_{name}.py"
        command = [sys.executable, script, self.data, "--batch-size", self.batch_size]
        if name != BY_HAND:
            command += ["--cache", self.options.work / "onsight-cache"]
        return run_json(*map(str, [*command, *setting.arguments(), *arguments]))

    def measure_rate(self, name: str, setting: Setting, *arguments: object) -> float:
        """Images per second in a short trial."""
        found = self.run(name, setting, "--seconds", self.options.tune_seconds, *arguments)
        print(f"  {name}, {setting}: {found['images_per_second']:,.0f}", file=sys.stderr)
        return float(found["images_per_second"])

    def tune(self) -> tuple[Setting, float]:
        """The fastest setting for the hand-written loop, and its rate."""
        counts = sorted({1, self.options.threads})
        settings = [Setting(*values) for values in product(counts, (0, 1))]
        rates = {setting: self.measure_rate(BY_HAND, setting) for setting in settings}
        best = max(rates, key=rates.__getitem__)
        return best, rates[best]

    def rows(self) -> list[list[str]]:
        """Measure, and return a row of the table for each contender."""
        threads = Setting(self.options.threads)
        first = self.run(ONSIGHT, threads, "--seconds", self.options.tune_seconds)
        plan = first["plan"]
        planned = Setting(plan["threads"])
        arguments = ["--precision", plan["precision"]]
        if "memory_format" in plan:
            arguments += ["--memory-format", plan["memory_format"]]
        by_hand, rate = self.tune()
        contenders: dict[str, tuple[Setting, list[str], float]] = {
            ONSIGHT: (threads, [], first["images_per_second"]),
            LIMIT: (planned, arguments, self.measure_rate(LIMIT, planned, *arguments)),
            BY_HAND: (by_hand, [], rate),
        }
        steps = {name: self.count_steps(rate) for name, (_, _, rate) in contenders.items()}
        loss_at = min(steps[ONSIGHT], steps[BY_HAND])

        def measure(name: str) -> float:
            setting, more, _ = contenders[name]
            found = self.run(name, setting, "--steps", steps[name], "--loss-at", loss_at, *more)
            self.losses.setdefault(name, []).append(found["loss"])
            return float(found["images_per_second"])

        rates = interleave(
            {name: partial(measure, name) for name in contenders},
            self.options.rounds,
            warm_up=False,
        )
        return [
            [
                str(self.batch_size),
                TITLES[name] + (f" ({by_hand})" if name == BY_HAND else ""),
                f"{statistics.median(found):,.0f}",
                "1" if name == ONSIGHT else str(paired(rates[ONSIGHT], found)),
                ""
                if name == LIMIT
                else f"{statistics.median(self.losses[name]):.2f} at {loss_at:,}",
            ]
            for name, found in rates.items()
        ]

    def count_steps(self, rate: float) -> int:
        """The number of steps in a round at this rate."""
        wanted = round(rate * self.options.seconds / self.batch_size)
        return int(min(max(MIN_STEPS, wanted), self.max_steps))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and update the section in RESULTS.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder of Fashion-MNIST's IDX files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[4, 32, 64, 512])
    parser.add_argument("--seconds", type=float, default=4.0, help="of training per contender")
    parser.add_argument("--tune-seconds", type=float, default=1.5, help="of training per trial")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="the maximum")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "onsight-benchmarks"
    )
    options = parser.parse_args(arguments)
    data = make_packed(options.data, options.work)
    # Onsight holds out some images for testing or validation.
    images = sum(path.stat().st_size // 3073 for path in data.glob("data_batch_*")) * 59 // 60
    rows = []
    for batch_size in options.batch_sizes:
        print(f"batch {batch_size}", file=sys.stderr)
        rows += Case(data, images, batch_size, options).rows()
    lines = [
        "## LeNet, step for step",
        "",
        circumstances(),
        "",
        *table(HEADER, rows),
        "",
        f"Each contender trained for about {options.seconds:g} s in each of {options.rounds} "
        "interleaved rounds, in its own process. The first tenth of the steps is not counted. The "
        "limit is Onsight's own step on one constant batch. Each loss is the mean over the last "
        "quarter of the steps up to the given one.",
    ]
    write_section("lenet_step", lines)


if __name__ == "__main__":
    main()
