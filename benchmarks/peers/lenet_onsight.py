"""How fast does Onsight train LeNet, in a complete run of `onsight.train`?

    python benchmarks/peers/lenet_onsight.py DATA --batch-size 64 --steps 500

It uses the recipe cifar10-lenet with another batch size. Time is measured outside of Onsight, at
each loss line that it reports, and so includes anything that its own clock might leave out.
"""

import argparse
import contextlib
import json
import re
import tempfile
import time
from pathlib import Path

from shared import Meter, parse

import onsight
from onsight.report.console import SilentReporter

LINES = 20
LINE = re.compile(r"\[1, *(\d+)\] loss: ([\d.]+),")


class Finished(Exception):
    """Raised to end the run."""


class Lines(SilentReporter):
    """Records the time of each loss line; ends the run after enough steps or seconds."""

    def __init__(self, options: argparse.Namespace, meter: Meter, steps: int) -> None:
        super().__init__()
        self.options, self.meter, self.steps = options, meter, steps
        self.begun_at = self.ended_at = 0

    def say(self, text: str) -> None:
        found = LINE.match(text)
        if not found:
            return
        now, step = time.perf_counter(), int(found[1])
        self.meter.losses += [float(found[2])] * (step - len(self.meter.losses))
        if step <= self.meter.warm_up or not self.meter.begun:
            self.meter.begun, self.begun_at = now, step
            return
        self.meter.ended, self.ended_at = now, step
        last = self.options.steps and step + self.steps > self.options.steps
        if last or (not self.options.steps and now - self.meter.begun > self.options.seconds):
            raise Finished


def train(options: argparse.Namespace, meter: Meter, out: Path) -> Lines:
    steps = max(1, options.steps // LINES) if options.steps else LINES
    lines = Lines(options, meter, steps)
    with contextlib.suppress(Finished):
        onsight.train(
            options.data,
            recipe="cifar10-lenet",
            out=out,
            reporter=lines,
            epochs=1,
            batch_size=options.batch_size,
            log_every_steps=steps,
            **({"cache_folder": options.cache} if options.cache else {}),
        )
    return lines


def rate(lines: Lines) -> float:
    steps = lines.ended_at - lines.begun_at
    images: int = steps * lines.options.batch_size
    return images / (lines.meter.ended - lines.meter.begun)


if __name__ == "__main__":
    options = parse(__doc__, cache=str)
    meter = Meter(options)
    with tempfile.TemporaryDirectory() as folder:
        lines = train(options, meter, Path(folder) / "run")
        plan = json.loads((Path(folder) / "run" / "plan.json").read_text())
    chosen = {name: choice["value"] for name, choice in plan.items()}
    meter.report(images_per_second=rate(lines), plan=chosen)
