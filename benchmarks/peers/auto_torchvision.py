"""How accurate is a fine-tuning loop like torchvision's reference scripts after some seconds?

    python benchmarks/peers/auto_torchvision.py TRAIN TEST --seconds 60

RandomResizedCrop, mirroring, label smoothing, a warm-up and a cosine. The cosine follows the clock,
so that it ends with the budget whatever the speed of the machine.
"""

import argparse
import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from auto_shared import (
    Images,
    evaluation_seconds,
    find_correct,
    forward,
    make_loader,
    make_net,
    make_parser,
    normalization,
    read_images,
    report,
    seconds_left,
    start,
)
from torch import nn
from torchvision import transforms

WARM_UP_SHARE = 0.1  # of the time
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd": lambda parameters, lr, weight_decay: torch.optim.SGD(
        parameters, lr, momentum=0.9, weight_decay=weight_decay
    ),
}


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.02)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--least-area", type=float, default=0.35)
    return start(parser)


def training_transform(options: argparse.Namespace) -> transforms.Compose:
    crop = transforms.RandomResizedCrop(options.size, (options.least_area, 1.0))
    return transforms.Compose([crop, transforms.RandomHorizontalFlip(), *normalization()])


def rate_factor(progress: float) -> float:
    """The learning rate relative to its maximum; progress is the share of the time that passed."""
    if progress < WARM_UP_SHARE:
        return max(0.01, progress / WARM_UP_SHARE)
    return (1 + math.cos(math.pi * (progress - WARM_UP_SHARE) / (1 - WARM_UP_SHARE))) / 2


def train(net: nn.Module, images: Images, options: argparse.Namespace, seconds: float) -> None:
    """Train for this many seconds."""
    loader = make_loader(images, options, train=True)
    make = OPTIMIZERS[options.optimizer]
    optimizer = make(net.parameters(), options.learning_rate, weight_decay=options.weight_decay)
    net.train()
    begun = time.perf_counter()
    while True:
        for inputs, labels in loader:
            progress = (time.perf_counter() - begun) / seconds if seconds > 0 else 1.0
            if progress >= 1:
                return
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * rate_factor(progress)
            outputs = forward(net, inputs, options)
            loss = F.cross_entropy(outputs, labels, label_smoothing=options.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def main() -> None:
    options = parse()
    train_images, test = read_images(options, training_transform(options))
    net = make_net(options, len(test.classes))
    seconds = seconds_left(options, evaluation_seconds(net, test, options))
    train(net, train_images, options, seconds)
    report(find_correct(net, test, options), test)


if __name__ == "__main__":
    main()
