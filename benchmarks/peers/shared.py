"""What the contenders of lenet_step.py share: arguments, the tutorials' LeNet, and a meter.

    python benchmarks/peers/lenet_tensors.py DATA --batch-size 64 --steps 500

DATA has CIFAR-10's binary files. The last line printed is JSON.
"""

import argparse
import json
import time
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10
MIN_WARM_UP_STEPS = 20


def parse(description: str | None, **more: type) -> argparse.Namespace:
    """Parse the arguments of every script; more: further ones by name, with their type."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=0, help="0: until --seconds have passed")
    parser.add_argument("--seconds", type=float, default=4.0, help="used where --steps is 0")
    parser.add_argument("--loss-at", type=int, default=0, help="step of the loss; 0: the last")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--channels-last", type=int, choices=(0, 1), default=0)
    for name, kind in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    return options


class Meter:
    """Counts steps, and records the time after the warm-up and at the end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.warm_up = max(MIN_WARM_UP_STEPS, options.steps // 10)
        self.losses: list[float] = []
        self.created = time.perf_counter()
        self.begun = self.ended = 0.0

    def step(self, loss: float) -> bool:
        """Count a step with its loss; returns whether it was the last."""
        self.losses.append(loss)
        if len(self.losses) <= self.warm_up:
            self.begun = time.perf_counter()
            return False
        if self.options.steps:
            done = len(self.losses) == int(self.options.steps)
        else:
            done = time.perf_counter() - self.begun > float(self.options.seconds)
        if done:
            self.ended = time.perf_counter()
        return done

    def report(self, **more: object) -> None:
        """Print the steady rate, and the mean loss over the last quarter of steps to --loss-at."""
        steps = len(self.losses)
        at = min(self.options.loss_at or steps, steps)
        images = (steps - self.warm_up) * self.options.batch_size
        facts = {
            "images_per_second": images / (self.ended - self.begun),
            "loss": float(np.mean(self.losses[at * 3 // 4 : at])),
            "loss_at": at,
            "steps": steps,
            "warm_up_seconds": self.begun - self.created,
        }
        print(json.dumps(facts | more))


class LeNet(nn.Module):
    """The tutorials' network: 5x5 convolutions of 6 and 16, then linear layers of 120, 84 and K."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, 10) of images (n, 3, 32, 32)."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return cast(Tensor, self.fc3(x))
