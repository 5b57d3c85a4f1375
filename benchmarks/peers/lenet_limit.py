"""How fast is Onsight's own step on one constant batch, without any data loading?

    python benchmarks/peers/lenet_limit.py DATA --batch-size 64 --steps 500

The step is that of a run of the recipe cifar10-lenet, built by the same functions. Its speed on one
constant batch is the limit for a run.
"""

import argparse
import itertools

from shared import Meter, parse
from torch import Tensor

from onsight.config import make_config
from onsight.config_files import read_recipe
from onsight.data.cache import find_cache_folder
from onsight.data.dataset import open_dataset
from onsight.data.index import TRAIN
from onsight.data.loader import Loader
from onsight.data.sources.find import find_source
from onsight.hardware.devices import choose_devices
from onsight.hardware.reproducible import reproducible
from onsight.ranks.world import World
from onsight.step.build import make_augmentation, make_net, make_step
from onsight.step.step import Step
from onsight.tune.training_data import make_normalization


def prepare(options: argparse.Namespace) -> tuple[Step, tuple[Tensor, Tensor]]:
    """Build the step and a batch for it."""
    given = {"batch_size": options.batch_size, "precision": options.precision or "fp32"}
    if options.memory_format:
        given["memory_format"] = options.memory_format
    config = make_config(read_recipe("cifar10-lenet"), given)
    assert config.size  # as the recipe says
    cache = find_cache_folder(options.cache or "")
    source = find_source(str(options.data), cache_folder=cache)
    dataset = open_dataset(source, config, config.size, cache, options.threads)
    device = choose_devices("cpu", 0).value[0]
    net = make_net(config, dataset, device).train()
    step = make_step(config, net, dataset, device, World())
    batch = next(Loader(dataset.images, dataset.ids(TRAIN), options.batch_size, device).epoch(0, 0))
    augmentation = make_augmentation(config, dataset)
    normalization = make_normalization(config, dataset.images, dataset)
    numbers = augmentation.draw_numbers(0, 0, batch.ids)
    inputs = augmentation.augment_images(batch.images, numbers, normalization)
    return step, augmentation.mix_batch(inputs, batch.labels, numbers, len(dataset.classes))


def train(options: argparse.Namespace, meter: Meter) -> None:
    """Train until the meter has counted enough steps."""
    step, (inputs, targets) = prepare(options)
    for _ in itertools.count():
        (loss,) = step(inputs, targets)  # on the CPU, the loss of this batch
        if meter.step(loss):
            return


if __name__ == "__main__":
    options = parse(__doc__, cache=str, precision=str, memory_format=str)
    meter = Meter(options)
    with reproducible(options.threads):
        train(options, meter)
    meter.report()
