"""How fast is a hand-written loop with all images as one tensor in memory?

    python benchmarks/peers/lenet_tensors.py DATA --batch-size 64 --steps 500

The loop is torch.randperm, index, scale and step, without any work per image. It is the baseline
for the overhead of a trainer.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
import torch
from shared import LeNet, Meter, parse
from torch import Tensor, nn


def read_images(folder: Path) -> tuple[Tensor, Tensor]:
    """Read training images, uint8 (n, 32, 32, 3), and labels (n,) from CIFAR-10's binary files."""
    files = sorted(folder.glob("data_batch_*.bin"))
    rows = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
    pixels = np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return torch.from_numpy(pixels), torch.from_numpy(rows[:, 0].astype(np.int64))


def scale(pixels: Tensor, is_channels_last: bool) -> Tensor:
    """Scale pixels, stored channels last, to floats (n, 3, 32, 32) from -1 to 1."""
    inputs = pixels.permute(0, 3, 1, 2)
    if not is_channels_last:
        inputs = inputs.contiguous()
    return inputs.float().mul_(1 / 127.5).sub_(1)


def train(options: argparse.Namespace, meter: Meter) -> None:
    """Train until the meter has counted enough steps."""
    pixels, labels = read_images(options.data)
    net = LeNet()
    if options.channels_last:
        net = net.to(memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    for _ in itertools.count():
        for rows in torch.randperm(len(labels)).split(options.batch_size):
            optimizer.zero_grad()
            loss = criterion(net(scale(pixels[rows], options.channels_last)), labels[rows])
            loss.backward()
            optimizer.step()
            if meter.step(loss.item()):
                return


if __name__ == "__main__":
    options = parse(__doc__)
    meter = Meter(options)
    train(options, meter)
    meter.report()
