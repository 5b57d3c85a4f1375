"""Which small net trained from scratch is the most accurate after a given time?

    python benchmarks/small_nets.py /usr/share/datasets/fashion-mnist [--quick] [--lines FILE]
    python benchmarks/small_nets.py DATA --image-size 64 --held-out 0.2 --steps 85 250

The candidates (small_net_candidates.py) are trained by Onsight's own steps, from its loader, with
its augmentation and the usual settings of `compact` (AdamW at 0.01, one-cycle, batches of 128), and
judged on validation pictures; test pictures are never looked at.

1. Seconds of a step relative to compact's: one thread, fp32, interleaved rounds, CPU time, so that
   other work on the machine counts little. Also counted: parameters, multiply-adds for a picture,
   torch operators of a training step and the bytes that they read and write, which matter more
   than multiply-adds on a GPU.
2. Successive halving: each net gets the time in which compact makes so many steps (--steps), so a
   fast net makes more. The best third of compact's rivals goes on to the next round.
3. The time to --target: between the rounds, the share of mistakes as a power of the time.

Each run's outcome is appended to --lines at once; --table prints the tables of such a file.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice, pairwise
from pathlib import Path

import torch
from harness import circumstances, table
from small_net_candidates import CANDIDATES, SmallNet
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from onsight.config import Config, make_config
from onsight.data.index import TRAIN, VALIDATION
from onsight.data.loader import Batch, Loader
from onsight.evaluation.intervals import wilson
from onsight.evaluation.per_image import BATCH_SIZE, evaluate_batches
from onsight.hardware.reproducible import reproducible
from onsight.models.classifier import Classifier
from onsight.models.freeze import set_training_mode
from onsight.report.console import SilentReporter
from onsight.training.build import make_net, make_update
from onsight.training.pictures.open_data import find_data, open_data
from onsight.training.pictures.training_data import TrainingData, place
from onsight.training.step.optim import (
    choose_learning_rate,
    learning_rate_factor,
    set_learning_rate,
)
from onsight.training.step.update import Update
from onsight.words import fixed_percent

CPU = torch.device("cpu")
REFERENCE = "compact"
WHITENED_ON = 512  # pictures
STEPS_A_ROUND = 4
KEPT_SHARE = 3  # the best of so many go on


@dataclass(frozen=True)
class Cost:
    """What a net costs. step: its CPU seconds over compact's, by round; bytes: of a step."""

    parameters: int
    multiply_adds: int
    operators: int
    bytes: int
    step: list[float]

    @property
    def relative(self) -> float:
        return statistics.median(self.step)


class Operators(TorchDispatchMode):
    """Counts the operators that compute something, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if not func.is_view and func.namespace == "aten":
            self.calls += 1
            tensors = [one for one in tree_leaves((args, kwargs, made)) if isinstance(one, Tensor)]
            self.bytes += sum(one.nbytes for one in tensors)
        return made


def load(options: argparse.Namespace) -> tuple[Config, TrainingData]:
    """The pictures, a part of the training pictures held out for validation."""
    fields = {"model": REFERENCE, "validation_fraction": options.held_out, "folds": "1"}
    fields |= {"precision": "fp32", "threads": 1, "compile": "off", "seed": options.seed}
    if options.image_size:
        fields["image_size"] = options.image_size
    config = make_config(fields)
    config = config.model_copy(update={"learning_rate": choose_learning_rate(config).value})
    source = find_data(options.data, config, SilentReporter())
    opened = open_data(source, config, CPU, 1, SilentReporter())
    return config, place(opened.dataset, config, CPU, "memory")


def make(name: str, config: Config, data: TrainingData) -> tuple[nn.Module, Update]:
    """A candidate with its initial weights, and what trains it."""
    torch.manual_seed(config.seed)
    net = CANDIDATES[name](data.dataset.input_shape, len(data.dataset.classes))
    net = make_net(config, data.dataset, CPU, net)
    if isinstance(net, SmallNet):
        ids = data.dataset.ids(TRAIN)[:WHITENED_ON]
        pixels = next(Loader(data.pictures, ids, WHITENED_ON, CPU).in_order()).images
        net.whiten(data.normalization.apply(pixels))
    set_training_mode(net)
    return net, make_update(config, net, data.dataset, data.normalization, CPU)


def batches(config: Config, data: TrainingData) -> Iterator[tuple[int, int, Batch]]:
    """The training batches, epoch after epoch, each with its epoch and its step."""
    loader = Loader(data.pictures, data.dataset.ids(TRAIN), config.batch_size, CPU)
    for epoch in count():
        for step, batch in enumerate(loader.epoch(config.seed, epoch)):
            yield epoch, step, batch


def measure_costs(names: list[str], config: Config, data: TrainingData, rounds: int) -> dict:
    """The Cost of every net; rounds are interleaved and their order rotates."""
    updates = {name: make(name, config, data) for name in names}
    _, _, batch = next(batches(config, data))
    counted = {name: count_work(net, update, batch) for name, (net, update) in updates.items()}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            begun = time.process_time()
            for step in range(STEPS_A_ROUND):
                updates[name][1](batch, number, step)
            seconds[name].append(time.process_time() - begun)
    own = seconds[REFERENCE][1:]  # the first round warms up
    print(f"compact: {statistics.median(own) / STEPS_A_ROUND:.3f} CPU s a step", file=sys.stderr)
    return {
        name: Cost(*counted[name], [mine / ref for mine, ref in zip(times[1:], own, strict=True)])
        for name, times in seconds.items()
    }


def count_work(net: nn.Module, update: Update, batch: Batch) -> tuple[int, int, int, int]:
    """Parameters, multiply-adds of one forward picture, operators and bytes of a step."""
    inputs, targets = update.augmented(batch, 0, 0)
    update.make(inputs, targets, batch.global_labels)  # makes the optimizer's state
    with Operators() as operators:
        update.make(inputs, targets, batch.global_labels)
    with FlopCounterMode(display=False) as flops, torch.no_grad():
        net(inputs[:2])
    parameters = sum(one.numel() for one in net.parameters())
    return parameters, flops.get_total_flops() // 4, operators.calls, operators.bytes


def train(name: str, steps: int, config: Config, data: TrainingData) -> dict:
    """Train a net for so many steps with a whole schedule; its result on validation pictures."""
    net, update = make(name, config, data)
    begun, cpu = time.perf_counter(), time.process_time()
    for done, (epoch, step, batch) in enumerate(islice(batches(config, data), steps)):
        factor = learning_rate_factor(config.schedule, done, steps, 0)
        set_learning_rate(update.step.optimizer, config.learning_rate, factor)
        update(batch, epoch, step)
    update.step.flush()
    took = {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - cpu}
    held_out = Loader(data.pictures, data.dataset.ids(VALIDATION), BATCH_SIZE, CPU)
    classifier = Classifier(net, data.normalization, "fp32", CPU)
    judged = evaluate_batches(classifier, held_out.in_order())
    right = int((judged.labels == judged.predicted).sum())
    return {"net": name, "steps": steps, "right": right, "n": len(judged.labels), **took}


def search(options: argparse.Namespace, config: Config, data: TrainingData) -> list[dict]:
    """Cost lines, then a line for each training."""
    names = options.only or list(CANDIDATES)
    names = [REFERENCE, *(name for name in names if name != REFERENCE)]
    costs = measure_costs(names, config, data, options.rounds)
    lines: list[dict] = []

    def keep(line: dict) -> None:
        lines.append({"data": Path(options.data).name, "seed": options.seed} | line)
        print(json.dumps(lines[-1]), file=sys.stderr)
        with options.lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(lines[-1]) + "\n")

    for name, cost in costs.items():
        keep({"net": name, **vars(cost), "circumstances": circumstances()})
    for allowed in options.steps:
        found = {}
        for name in names:
            steps = round(allowed / costs[name].relative)
            found[name] = train(name, steps, config, data) | {"allowed": allowed}
            keep(found[name])
        rivals = sorted(names[1:], key=lambda name: found[name]["right"], reverse=True)
        names = [REFERENCE, *rivals[: max(1, len(rivals) // KEPT_SHARE)]]
    return lines


def tables(lines: list[dict], target: float) -> list[str]:
    """The nets' costs, then their accuracy in each time, in Markdown."""
    costs = {line["net"]: line for line in lines if "parameters" in line}
    runs: dict[str, dict[int, list[dict]]] = {name: {} for name in costs}
    for line in lines:
        if "right" in line:
            runs[line["net"]].setdefault(line["allowed"], []).append(line)
    times = sorted({line["allowed"] for line in lines if "right" in line})
    within = ["net", *(f"as {allowed} steps of compact" for allowed in times)]
    results = [
        [name, *(_accuracy(found.get(allowed, [])) for allowed in times), time_to(found, target)]
        for name, found in runs.items()
    ]
    goal = f"time to {fixed_percent(target)}, in steps of compact"
    head = ["net", "parameters", "multiply-adds", "operators a step", "MB a step", "step / compact"]
    return [
        *table(head, [_cost_row(name, one) for name, one in costs.items()]),
        "",
        *table([*within, goal], results),
    ]


def _cost_row(name: str, cost: dict) -> list[str]:
    return [
        name,
        f"{cost['parameters']:,}",
        f"{cost['multiply_adds'] / 1e6:.2f} M",
        f"{cost['operators']}",
        f"{cost['bytes'] / 1e6:.0f}",
        _spread(cost["step"]),
    ]


def time_to(runs: dict[int, list[dict]], target: float) -> str:
    """The time to a share of right answers, in steps of compact; empty if it was not reached.

    Mistakes are taken as a power of the time between neighbouring rounds.
    """
    points = [(allowed, 1 - _share(found)) for allowed, found in sorted(runs.items())]
    if points and points[0][1] <= 1 - target:
        return f"at most {points[0][0]:,}"
    for (early, more), (late, fewer) in pairwise(points):
        if fewer <= 1 - target:
            power = math.log(more / fewer) / math.log(late / early)
            return f"{late * (fewer / (1 - target)) ** (1 / power):,.0f}"
    return ""


def _share(found: list[dict]) -> float:
    return sum(run["right"] for run in found) / sum(run["n"] for run in found)


def _accuracy(found: list[dict]) -> str:
    if not found:
        return ""
    words = ", ".join(fixed_percent(run["right"] / run["n"]) for run in found)
    if len(found) > 1:
        return f"{words} ({found[0]['steps']:,} steps)"
    low, high = (fixed_percent(end) for end in wilson(found[0]["right"], found[0]["n"]))
    return f"{words} ({low} to {high}; {found[0]['steps']:,} steps)"


def _spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", default="")
    parser.add_argument("--image-size", default="")
    parser.add_argument("--held-out", type=float, default=1 / 12)
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 400, 1150])
    parser.add_argument("--rounds", type=int, default=9, help="of the timing")
    parser.add_argument("--only", nargs="+", choices=list(CANDIDATES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=0.92)
    parser.add_argument("--quick", action="store_true", help="20 steps, to see that all nets work")
    parser.add_argument("--lines", type=Path, default=Path("small_nets.jsonl"))
    parser.add_argument("--table", type=Path, help="such lines; nothing is run")
    options = parser.parse_args()
    if options.table:
        lines = [json.loads(text) for text in options.table.read_text().splitlines()]
        print("\n".join(tables(lines, options.target)))
        return
    if not options.data:
        parser.error("DATA or --table is needed")
    if options.quick:
        options.steps, options.rounds = [20], 3
    with reproducible(1):
        config, data = load(options)
        lines = search(options, config, data)
    print("\n".join(tables(lines, options.target)))


if __name__ == "__main__":
    main()
