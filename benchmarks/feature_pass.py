"""What does the feature pass cost beside a bare loop, and what does keeping features gain?

    python benchmarks/feature_pass.py DATA [--size 96] [--pictures 1024] [--rounds 5]

DATA is anything that Onsight trains on. First the pass alone: Onsight's, and inference written out
by hand in the same precision on the same tensors, in batches of several sizes. Then a head with a
frozen backbone: Onsight's pass and fit, its fit on features that are kept already, and ten epochs
of a loop that computes the features again in each.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from harness import circumstances, interleave, paired, table, write_section
from torch import Tensor, nn

from onsight.config import make_config
from onsight.data.dataset import open_dataset
from onsight.data.index import TRAIN
from onsight.data.loader import Loader, Pictures
from onsight.data.normalization import Normalization
from onsight.data.sources.find import find_source
from onsight.features.feature_pass import compute_features, feature_loader
from onsight.features.heads.linear import LinearHead, Standardization
from onsight.features.heads.logistic import fit_logistic
from onsight.hardware.cores import usable_cores
from onsight.models.catalog import expected_input, make_model
from onsight.models.classifier import Classifier, autocast

NETWORK = "tf_efficientnet_lite0"
MEAN, DEVIATION = expected_input(NETWORK).scaling(3)
CPU = torch.device("cpu")
EPOCHS = 10
LOOP_BATCH = 64
RATE = 3e-3
PENALTY = 1e-2


class Work(NamedTuple):
    """The network and the pictures (n, H, W, 3) that all contenders share."""

    classifier: Classifier
    loader: Loader
    images: Tensor
    labels: Tensor
    classes: int


def make_work(options: argparse.Namespace) -> Work:
    size = (options.size, options.size)
    config = make_config({"image_size": str(options.size), "channels": "3"})
    source = find_source(str(options.data))
    dataset = open_dataset(source, config, size, None, usable_cores())
    pictures = dataset.pictures
    assert isinstance(pictures, Pictures)
    ids = dataset.ids(TRAIN)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    ids = ids[order[: options.pictures]]
    classes = len(dataset.classes)
    net = make_model(NETWORK, (3, *size), classes, pretrained=True)
    net = net.to(memory_format=torch.channels_last).eval()
    classifier = Classifier(net, Normalization(MEAN, DEVIATION), options.precision, CPU)
    batch = pictures.gather(ids)
    return Work(classifier, Loader(pictures, ids, 128, CPU), batch.images, batch.labels, classes)


def our_features(work: Work) -> Tensor:
    return compute_features(work.classifier, feature_loader(work.loader).in_order())


def scaled(images: Tensor) -> Tensor:
    """Pictures (B, H, W, 3) as a network's input, channels last."""
    inputs = images.permute(0, 3, 1, 2).float().div_(255)
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, DEVIATION))
    return inputs.sub_(mean).div_(deviation)


def bare_features(work: Work, batch_size: int) -> Tensor:
    """The loop as written by hand: the whole network but its last layer."""
    net = work.classifier.net
    with torch.inference_mode(), autocast(work.classifier.precision, CPU):
        return torch.cat(
            [
                net.forward_head(net.forward_features(scaled(images)), pre_logits=True).float()
                for images in work.images.split(batch_size)
            ]
        )


def fit(features: Tensor, work: Work) -> LinearHead:
    standardization = Standardization.of(features)
    return fit_logistic(standardization.apply(features), work.labels, work.classes, PENALTY)


def recomputing_loop(work: Work) -> None:
    """Ten epochs of training the last layer alone, as a frozen backbone is usually trained."""
    head = nn.Linear(work.classifier.net.num_features, work.classes)
    optimizer = torch.optim.AdamW(head.parameters(), RATE)
    for _ in range(EPOCHS):
        for ids in torch.randperm(len(work.labels)).split(LOOP_BATCH):
            features = bare_features(work._replace(images=work.images[ids]), LOOP_BATCH).clone()
            loss = F.cross_entropy(head(features), work.labels[ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def rate(work: Work, job: Callable[[], object]) -> float:
    """Pictures per second, each counted once however often it is used."""
    begun = time.perf_counter()
    job()
    return len(work.labels) / (time.perf_counter() - begun)


def compare(work: Work, jobs: dict[str, Callable[[], object]], rounds: int) -> list[str]:
    """A table of the contenders; the first is Onsight."""
    rates = interleave({name: partial(rate, work, job) for name, job in jobs.items()}, rounds)
    ours, *_ = rates
    rows = [
        [
            name,
            f"{statistics.median(found):,.0f}",
            "" if name == ours else str(paired(rates[ours], found)),
        ]
        for name, found in rates.items()
    ]
    return table(["contender", "pictures/s", "Onsight's rate / its rate"], rows)


def check(work: Work) -> None:
    """Equal features: otherwise the contenders would do different work."""
    ours, theirs = our_features(work), bare_features(work, LOOP_BATCH)
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    print(f"largest difference of features: {difference:.2g} of the largest", file=sys.stderr)
    assert difference < (1e-3 if work.classifier.precision == "fp32" else 0.1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--size", type=int, default=96, help="in pixels")
    parser.add_argument("--pictures", type=int, default=1024)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    work = make_work(options)
    check(work)
    kept = our_features(work)
    passes = {"Onsight's feature pass": lambda: our_features(work)} | {
        f"bare loop, batches of {size}": partial(bare_features, work, size)
        for size in options.batches
    }
    heads = {
        "Onsight's pass and fit": lambda: fit(our_features(work), work),
        "Onsight's fit of kept features": lambda: fit(kept, work),
        f"{EPOCHS} epochs, features computed again": lambda: recomputing_loop(work),
    }
    lines = [
        "## Features, computed once",
        "",
        f"{len(work.labels):,} pictures of {options.size}x{options.size}, {work.classes} classes, "
        f"{NETWORK}, {options.precision}; {circumstances('timm')}.",
        "",
        *compare(work, passes, options.rounds),
        "",
        *compare(work, heads, options.rounds),
    ]
    write_section("feature_pass", lines)


if __name__ == "__main__":
    main()
