"""Updates on the twin that checks share."""

import types
from itertools import islice

import numpy as np
import torch

from onsight.config import make_config
from onsight.data.index import TRAIN
from onsight.data.loader import Loader, Pictures
from onsight.data.normalization import measure
from onsight.testing.twin.install import install
from onsight.training.build import make_net, make_update

install()
DEVICE = torch.device("twin:1")  # while 0 is the current one
SIDE, CLASSES, PICTURES, BATCH = 32, 3, 96, 16


def config_and_pictures(model, count, **settings):
    """A config, and a dataset of pictures of noise."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, SIDE * SIDE * 3), generator=generator).byte()
    numbers = torch.arange(count)
    dataset = types.SimpleNamespace(
        pictures=Pictures(pixels, numbers, numbers % CLASSES, (SIDE, SIDE, 3)),
        input_shape=(3, SIDE, SIDE),
        classes=["a", "b", "c"],
        counts=lambda split: np.array([40, 30, 26]),
        ids=lambda split: numbers,
    )
    common = {"precision": "fp32", "learning_rate": 0.01, "batch_size": BATCH, "compile": "off"}
    return make_config({"model": model, **common, **settings}), dataset


def make(model="lenet", count=PICTURES, module=None, device=DEVICE, world=None, **settings):
    """(update, loader) on a device, for pictures of noise. module: a net of the test's own."""
    config, dataset = config_and_pictures(model, count, **settings)
    pictures, numbers = dataset.pictures, dataset.ids(TRAIN)
    normalization = measure(pictures, numbers)
    net = make_net(config, dataset, device, module).train()
    update = make_update(config, net, dataset, normalization, device, world)
    mixes = update.augmentation.mixes
    loader = Loader(pictures.to(device), numbers, BATCH, device, with_next=mixes)
    return update, loader


def steady(machine, update, loader, steps):
    """Run some steps of an epoch, then those of another, of which alone the record is kept."""
    for epoch, count in ((0, min(steps, 3)), (1, steps)):
        machine.record.clear()
        for step, batch in enumerate(islice(loader.epoch(0, epoch), count)):
            if step == 1:  # the first of an epoch draws its order
                machine.record.waits.clear()
            update(batch, epoch, step)
