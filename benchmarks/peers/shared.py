"""What the peers' scripts share: how fast does a peer train the LeNet of the tutorials?

    python benchmarks/peers/lenet_tutorial.py DATA --kind packed --batch-size 64 --steps 500

DATA is what `benchmarks/stand_ins.py` makes: CIFAR-10's binary files (packed) or class folders
of PNG files (png). The last line printed is JSON. A peer's own script has its loop and nothing
else; arguments, pictures, net and clock are here, so that they are the same for all.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, transforms

CLASSES = 10
RATE, MOMENTUM = 0.001, 0.9
LEAST_WARM_UP = 20
HALF = (0.5, 0.5, 0.5)


def parse(description: str, **more: type) -> argparse.Namespace:
    """The arguments that every peer takes; more: further ones by name, with their type."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--kind", choices=("packed", "png"), default="packed")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=0, help="0: until --seconds have passed")
    parser.add_argument("--seconds", type=float, default=4.0, help="used where --steps is 0")
    parser.add_argument("--loss-at", type=int, default=0, help="step of the loss; 0: the last")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--persistent-workers", type=int, choices=(0, 1), default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--channels-last", type=int, choices=(0, 1), default=0)
    for name, kind in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    return options


class Meter:
    """Counts steps and notes the time after a warm-up and at the end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.warm_up = max(LEAST_WARM_UP, options.steps // 10)
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
            done = len(self.losses) == self.options.steps
        else:
            done = time.perf_counter() - self.begun > self.options.seconds
        if done:
            self.ended = time.perf_counter()
        return done

    def report(self, **more: object) -> None:
        """Print the steady rate, and the mean loss of the quarter of the steps before --loss-at."""
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
    """The net of the tutorials: convolutions 6 and 16 of 5x5, linear 120, 84 and K."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, CLASSES)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def make_net(options: argparse.Namespace) -> nn.Module:
    net = LeNet()
    return net.to(memory_format=torch.channels_last) if options.channels_last else net


def make_sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)


def read_packed(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Training pictures (n, 32, 32, 3) and labels (n,) from CIFAR-10's binary files."""
    files = sorted(folder.glob("data_batch_*.bin"))
    rows = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
    pixels = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels), rows[:, 0].astype(np.int64)


class Packed(Dataset):
    """Pictures in memory, one at a time, as torchvision.datasets.CIFAR10 keeps and returns them.

    Arrays go to the transform as they are: CIFAR10's detour through PIL would only slow the peer.
    """

    def __init__(self, folder: Path, transform) -> None:
        self.data, targets = read_packed(folder)
        self.targets = targets.tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index):
        return self.transform(self.data[index]), self.targets[index]


def make_dataset(options: argparse.Namespace) -> Dataset:
    """One picture at a time, with the tutorial's transforms."""
    scale = [transforms.ToTensor(), transforms.Normalize(HALF, HALF)]
    if options.kind == "packed":
        return Packed(options.data, transforms.Compose(scale))
    resize = transforms.Resize((32, 32))
    return datasets.ImageFolder(options.data / "train", transforms.Compose([resize, *scale]))


def make_loader(options: argparse.Namespace) -> DataLoader:
    return DataLoader(
        make_dataset(options),
        batch_size=options.batch_size,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=bool(options.workers and options.persistent_workers),
    )


def set_memory_format(inputs: torch.Tensor, options: argparse.Namespace) -> torch.Tensor:
    return inputs.to(memory_format=torch.channels_last) if options.channels_last else inputs
