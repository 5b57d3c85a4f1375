"""How long does Onsight need to reach a test accuracy on Fashion-MNIST?

    python benchmarks/peers/accuracy_onsight.py DATA --target 91

With the recipe `fast`, and nothing kept from an earlier run: decoding the pictures is part of the
time.
"""

import contextlib
import re
import tempfile
from pathlib import Path

from accuracy_shared import Judge, parse, read_idx

import onsight
from onsight.config import recipe_names
from onsight.report.console import SilentReporter

REPORTED = re.compile(r"epoch \d+/\d+: .*test (\d+\.\d+)%.*n = ([\d,]+)")
EPOCHS = {91.0: 3, 93.0: 10}


class Enough(Exception):
    pass


class Watchdog(SilentReporter):
    """Reads the test accuracy that Onsight reports after each epoch."""

    def __init__(self, judge) -> None:
        super().__init__()
        self.judge = judge

    def say(self, text):
        if found := REPORTED.match(text):
            images = int(found[2].replace(",", ""))
            if self.judge.enough(round(float(found[1]) / 100 * images), images):
                raise Enough


def train(options, judge, folder):
    with contextlib.suppress(Enough):
        onsight.train(
            options.data,
            recipe="fast" if "fast" in recipe_names() else None,
            out=Path(folder) / "run",
            reporter=Watchdog(judge),
            epochs=options.epochs,
            validation_fraction=0.0,
            test_each_epoch=True,
            cache_folder="none",
        )


if __name__ == "__main__":
    options = parse(__doc__, EPOCHS)
    judge = Judge(options)
    with tempfile.TemporaryDirectory() as folder:
        train(options, judge, folder)
    judge.report(len(read_idx(options.data, "train")[1]))
