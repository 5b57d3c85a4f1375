"""Is the plan's choice as good as the best found by an exhaustive search? And under load?

    python benchmarks/plan_choice.py [--load]

There are thirteen cases of network, image size and batch size. For each, the plan is measured as in
a run. Then all options for computing the step (precision, threads, memory format) are timed in long
interleaved rounds. The table shows the time of the best options divided by that of the plan's
choice; 1 is perfect. With --load, another process keeps one core busy throughout, and the choice is
compared with one thread in fp32 instead.
"""

import argparse
import itertools
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from harness import circumstances, table, write_section

from onsight.choice import Choice
from onsight.config import make_config
from onsight.hardware.reproducible import reproducible
from onsight.report.console import SilentReporter
from onsight.step.optim import choose_learning_rate
from onsight.text import plural
from onsight.training.job import Job
from onsight.training.layout import choose_layout, find_data
from onsight.training.open_data import open_data
from onsight.tune.planning import choose_compute
from onsight.tune.training_data import place_data
from onsight.tune.trial import Trial
from onsight_explain.threads import usable_cores

CPU = torch.device("cpu")
StepOptions = dict[str, Any]  # config fields that determine how a step is computed
CASES = [
    *(("lenet", 32, batch) for batch in (4, 32, 64, 512)),
    *(("compact", 28, batch) for batch in (16, 128, 512)),
    ("compact", 64, 64),
    ("quick", 32, 100),
    ("linear", 28, 256),
    ("resnet18", 64, 32),
    ("mobilenetv3_small_100", 64, 32),
    ("vit_tiny_patch16_224", 224, 4),
]


def combinations() -> list[StepOptions]:
    """Every combination of options that this machine can compute a step with."""
    counts = sorted({1, usable_cores()})
    grid = itertools.product(("fp32", "bf16"), counts, ("auto", "contiguous"))
    return [
        {"precision": precision, "threads": threads, "memory_format": memory_format}
        for precision, threads, memory_format in grid
    ]


class Case:
    """A network with an image size and a batch size."""

    def __init__(self, data: str, model: str, side: int, batch: int) -> None:
        self.name = f"{model} {side}x{side}, batch {batch}"
        fields: dict[str, Any] = {"model": model, "image_size": str(side), "batch_size": batch}
        fields["plan"] = "fresh"
        fields |= {"pretrained": False, "compile": "off", "cache_folder": "none"}
        config = make_config(fields)
        rate = choose_learning_rate(config).value
        self.config = config.model_copy(update={"learning_rate": rate})
        threads = Choice(usable_cores(), "every core")
        job = Job(SilentReporter(), Choice(CPU, "measured here"), threads)
        source = find_data(data, self.config, job)
        opened = open_data(choose_layout(source, self.config, job), None, job)
        self.data = place_data(opened.dataset, self.config, CPU, "memory")

    def choose(self) -> StepOptions:
        """The options that the plan chooses, measured as before a run of a few minutes."""
        config = choose_compute(self.config, self.data, SilentReporter(), 100.0).apply(self.config)
        return {name: getattr(config, name) for name in ("precision", "threads", "memory_format")}

    def timer(self, way: StepOptions) -> Callable[[], float]:
        """A function that times steps with these options and returns seconds per step."""
        trial = Trial(self.config.model_copy(update=way), self.data)
        timed = trial.timer(self.config.batch_size)
        steps = max(1, round(0.15 / (timed(2) / 2)))
        return lambda: timed(steps) / steps


@contextmanager
def competing_load() -> Iterator[None]:
    """Keep one core busy within the block."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def describe_options(way: StepOptions) -> str:
    memory_format = "" if way["memory_format"] == "auto" else f", {way['memory_format']}"
    return f"{way['precision']}, {plural(way['threads'], 'thread')}{memory_format}"


def search(
    case: Case, chosen: StepOptions, others: list[StepOptions], rounds: int
) -> tuple[str, list[float], float]:
    """The fastest of the others, the ratios of its time to the choice's, and the choice's rate."""
    timers = {describe_options(way): case.timer(way) for way in [chosen, *others]}
    times: dict[str, list[float]] = {name: [] for name in timers}
    for number in range(rounds):
        names = list(timers)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            times[name].append(timers[name]())
    best = min(map(describe_options, others), key=lambda name: statistics.median(times[name]))
    mine = times[describe_options(chosen)]
    ratios = [theirs / own for theirs, own in zip(times[best], mine, strict=True)]
    return best, ratios, case.config.batch_size / statistics.median(mine)


def measure_case(data: str, number: int, options: argparse.Namespace) -> list[str]:
    case = Case(data, *CASES[number])
    chosen = case.choose()
    single: StepOptions = {"precision": "fp32", "threads": 1, "memory_format": "auto"}
    others = [single] if options.load else combinations()
    best, ratios, rate = search(case, chosen, others, options.rounds)
    row = [case.name, describe_options(chosen), best, f"{rate:,.0f}"]
    row.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(" | ".join(row), file=sys.stderr)
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", type=int, default=len(CASES))
    parser.add_argument("--load", action="store_true", help="with another process on one core")
    options = parser.parse_args(arguments)
    with reproducible(usable_cores()), competing_load() if options.load else nullcontext():
        rows = [measure_case(options.data, n, options) for n in range(options.cases)]
    name, title = (
        ("plan under load", "one thread in fp32") if options.load else ("plan", "the best")
    )
    heading = "With another process on one core" if options.load else "The plan's choice"
    header = ["case", "the plan's choice", title, "images/s", f"time of {title} / the plan's"]
    lines = [f"## {heading}", "", circumstances("timm"), "", *table(header, rows)]
    write_section(name, lines)


if __name__ == "__main__":
    main()
