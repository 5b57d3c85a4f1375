"""How much of the pure step's speed is left once real batches are gathered and augmented?

    python benchmarks/loader_share.py /usr/share/datasets/fashion-mnist

LeNet at batch size 64: the ordinary path of a run (gather from the pack, draw, augment, normalise,
step) against the same step repeated on one constant batch, interleaved A B A B in one process. It
prints the median of the paired ratios with their range; the last line is JSON.
"""

import argparse
import json
import statistics
import time

import torch

from onsight.config import make_config
from onsight.data.augment import Augmentation
from onsight.data.cache import find_cache_folder
from onsight.data.dataset import open_dataset
from onsight.data.index import TRAIN
from onsight.data.loader import Loader
from onsight.data.normalization import measure
from onsight.data.sources.find import find_source
from onsight.hardware.cores import usable_cores
from onsight.hardware.devices import processor_name
from onsight.hardware.reproducible import reproducible
from onsight.models.catalog import make_model
from onsight.training.step.losses import make_loss
from onsight.training.step.optim import make_optimizer
from onsight.training.step.step import Step

CPU = torch.device("cpu")
AUGMENTATIONS = {
    "flip and translate": Augmentation.of(flip=True, translate=0.05),
    "no augmentation": Augmentation.of(),
}


def make_step(shape, classes):
    torch.manual_seed(0)
    net = make_model("lenet", shape, classes).to(memory_format=torch.channels_last).train()
    optimizer = make_optimizer(net, "sgd", 0.001, 0.0, 0.9)
    return Step(net, make_loss("cross-entropy", 0.0, None), optimizer, precision="fp32", device=CPU)


def time_path(loader, step, augmentation, normalization, classes, epoch, steps):
    begun = time.perf_counter()
    for number, batch in enumerate(loader.epoch(0, epoch)):
        if number == steps:
            break
        numbers = augmentation.draw(0, epoch, batch.ids)
        step(*augmentation.apply(batch, numbers, normalization, classes))
    return time.perf_counter() - begun


def time_constant(step, inputs, targets, steps):
    begun = time.perf_counter()
    for _ in range(steps):
        step(inputs, targets)
    return time.perf_counter() - begun


def measure_ratio(dataset, augmentation, batch_size, pairs, steps):
    classes = len(dataset.classes)
    height, width, channels = dataset.pictures.shape
    loader = Loader(dataset.pictures, dataset.ids(TRAIN), batch_size, CPU)
    normalization = measure(dataset.pictures, dataset.ids(TRAIN))
    step = make_step((channels, height, width), classes)
    batch = next(loader.epoch(0, 0))
    constant = augmentation.apply(batch, augmentation.draw(0, 0, batch.ids), normalization, classes)
    path = (loader, step, augmentation, normalization, classes)
    time_path(*path, 0, steps), time_constant(step, *constant, steps)  # warm up
    ratios, rates = [], []
    for pair in range(pairs):
        real = time_path(*path, pair + 1, steps)
        limit = time_constant(step, *constant, steps)
        ratios.append(limit / real)
        rates.append(steps * batch_size / real)
    return ratios, rates


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    threads = usable_cores()
    config = make_config({"image_size": str(options.image_size)})
    source = find_source(options.data, "auto", find_cache_folder())
    dataset = open_dataset(source, config, config.size, find_cache_folder(), threads)
    facts = {"processor": processor_name(), "threads": threads, "torch": torch.__version__}
    with reproducible(threads):
        for name, augmentation in AUGMENTATIONS.items():
            ratios, rates = measure_ratio(
                dataset, augmentation, options.batch_size, options.pairs, options.steps
            )
            median = statistics.median(ratios)
            print(
                f"{name}: {median:.3f} of the constant batch "
                f"({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} pairs), "
                f"{statistics.median(rates):,.0f} images/s"
            )
            facts[name] = {"ratio": median, "low": min(ratios), "high": max(ratios)}
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
