"""A model that needs no torch, for tests of all that is around models; also as a command.

python stub_runner.py predict MODEL INPUT... is `onsight predict` with it and without torch.
"""

import sys
import time
from pathlib import Path

import numpy as np

from onsight.data.fit import ImageFormat
from onsight.inference import predict
from onsight.inference.predictor import Predictor
from onsight.inference.runner import Outputs

BLOCKED = {"torch", "timm", "torchvision", "matplotlib", "tensorboard"}


class StubRunner:
    """Probabilities that depend on the image's mean, and in the last bits on the batch's size."""

    classes = ("dark", "middle", "light")
    format = ImageFormat(4, 4, 1)
    batch_size = 4
    threshold = None

    def __init__(self, seconds=0.0, stop_after=None):
        self.seconds = seconds
        self.stop_after = stop_after
        self.sizes = []
        self.facts = {"model": "stub"}

    def run(self, images, features=False):
        if len(self.sizes) == self.stop_after:
            raise KeyboardInterrupt
        time.sleep(self.seconds)
        self.sizes.append(len(images))
        light = images.mean(axis=(1, 2, 3)) / 255
        shares = np.stack([1 - light, np.full_like(light, 0.3), light], axis=1)
        shares += 0.001 * len(images)
        return Outputs((shares / shares.sum(axis=1, keepdims=True)).astype(np.float32))


class Blocker:
    """Refuses to import what an exported model must do without."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")


def main():
    from onsight.cli import main as run_command

    sys.meta_path.insert(0, Blocker())
    predict.load = lambda model, **options: Predictor(StubRunner(float(Path(model).read_text())))
    run_command()


if __name__ == "__main__":
    main()
