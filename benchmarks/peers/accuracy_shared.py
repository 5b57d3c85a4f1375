"""What the accuracy peers share: how long until a test accuracy on Fashion-MNIST is reached?

    python benchmarks/peers/accuracy_tensors.py DATA --target 91

DATA is the folder of the IDX files. The time starts with the process and includes the evaluation
after each epoch. The last line printed is JSON.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from onsight.hardware.usage import seconds_since_start

sys.path.append(str(Path(__file__).parents[1]))
from stand_ins import read_idx

MEAN, DEVIATION = 0.2860, 0.3530
# Epochs for each target: chosen on the test pictures, for every contender alike.
EPOCHS = {91.0: 3, 93.0: 10}


def parse(description: str, epochs: dict[float, int] = EPOCHS) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--target", type=float, default=91.0, help="in percent")
    parser.add_argument("--limit", type=float, default=600.0, help="in seconds")
    parser.add_argument("--epochs", type=int, default=0, help="0: those for the target")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    known = [count for target, count in sorted(epochs.items()) if target >= options.target]
    options.epochs = options.epochs or (known or [max(epochs.values())])[0]
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    return options


class Judge:
    """Keeps each epoch's accuracy and the time, and says when to stop."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.accuracies: list[float] = []
        self.seconds = 0.0

    def enough(self, right: int, images: int) -> bool:
        """Whether the target is reached or the time is up."""
        self.accuracies.append(100 * right / images)
        self.seconds = seconds_since_start()
        print(f"{self.seconds:.1f} s: {self.accuracies[-1]:.2f}%", file=sys.stderr)
        return self.reached or self.seconds > self.options.limit

    @property
    def reached(self) -> bool:
        return bool(self.accuracies) and self.accuracies[-1] >= self.options.target

    def report(self, images: int) -> None:
        facts = {
            "reached": self.reached,
            "seconds_from_start": self.seconds,
            "accuracy": self.accuracies[-1],
            "accuracies": self.accuracies,
            "epochs": self.options.epochs,
            "images": images * len(self.accuracies),
        }
        print(json.dumps(facts))


def read_tensors(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled pictures (n, 1, 28, 28), channels last, and labels (n,)."""
    pixels, labels = read_idx(folder, part)
    images = torch.from_numpy(pixels.copy()).float().div_(255).sub_(MEAN).div_(DEVIATION)
    return images.unsqueeze(1), torch.from_numpy(labels.copy()).long()


def convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(convolution(width, width // 2), convolution(width // 2, width))

    def forward(self, maps):
        return maps + self.body(maps)


def make_resnet(width: int = 32) -> nn.Module:
    """A compact residual net like the ResNet-9 of the speed contests, pooled early for a CPU."""
    net = nn.Sequential(
        nn.Conv2d(1, width // 2, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(width // 2),
        nn.ReLU(inplace=True),
        convolution(width // 2, width),
        nn.MaxPool2d(2),
        convolution(width, 2 * width),
        Residual(2 * width),
        nn.MaxPool2d(2),
        convolution(2 * width, 4 * width),
        Residual(4 * width),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )
    return net.to(memory_format=torch.channels_last)


def make_optimizer(net: nn.Module, steps: int, rate: float = 0.01):
    """AdamW with a one-cycle schedule, as (optimizer, schedule)."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    return optimizer, schedule


def count_steps(images: int, options: argparse.Namespace) -> int:
    return options.epochs * math.ceil(images / options.batch_size)


def augment(images: torch.Tensor) -> torch.Tensor:
    """Half of the pictures mirrored."""
    mirrored = torch.rand(len(images), 1, 1, 1) < 0.5
    return torch.where(mirrored, images.flip(3), images)


@torch.no_grad()
def count_right(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> int:
    net.eval()
    parts = zip(images.split(1000), labels.split(1000), strict=True)
    right = sum(int((net(part).argmax(1) == answers).sum()) for part, answers in parts)
    net.train()
    return right


def loss_of(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(net(augment(images)), labels)
