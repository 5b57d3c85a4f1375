"""The device under test, and updates on it that checks share.

It is the simulated device, or the real one that ONSIGHT_TEST_DEVICE names, such as cuda:0.
"""

import csv
import os
import types
from itertools import islice

import numpy as np
import pytest
import torch

from onsight.config import make_config
from onsight.data.index import TRAIN
from onsight.data.loader import Images, Loader
from onsight.data.normalization import measure_normalization
from onsight.step.build import make_net, make_update
from onsight.step.graphed import watch_waits
from onsight_explain.devices import module_of
from onsight_explain.simulated.install import install

_NAME = os.environ.get("ONSIGHT_TEST_DEVICE", "simulated:1")  # while simulated:0 is the current one
IS_SIMULATED = _NAME.startswith("simulated")
if IS_SIMULATED:
    install()
DEVICE = torch.device(_NAME)
SIDE, CLASSES, IMAGES, BATCH = 32, 3, 96, 16


class RealDevice:
    """In the simulated device's place: a test that asks for more than it has is skipped there."""

    def __init__(self):
        self.record = NoRecord()

    def check(self):
        module_of(DEVICE).synchronize(DEVICE)

    def __getattr__(self, name):
        pytest.skip(f"only the simulated device has {name}")


class NoRecord:
    """The record that a real device does not keep."""

    def clear(self):
        pass

    def __getattr__(self, name):
        pytest.skip(f"only the simulated device records {name}")


def assert_alike(found, expected):
    """The same values; on a real device, numbers but for rounding."""
    if IS_SIMULATED:
        assert found == expected
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_alike(found[name], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert_alike(mine, theirs)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-2, abs=1e-3)
    else:
        assert found == expected


def rows_of(text):
    """The rows of a CSV file, numbers as such."""
    return [[number_of(cell) for cell in row] for row in csv.reader(text.splitlines())]


def number_of(cell):
    try:
        return float(cell)
    except ValueError:
        return cell


def config_and_images(model, count, **settings):
    """A config, and a dataset of images of noise."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, SIDE * SIDE * 3), generator=generator).byte()
    numbers = torch.arange(count)
    dataset = types.SimpleNamespace(
        images=Images(pixels, numbers, numbers % CLASSES, (SIDE, SIDE, 3)),
        input_shape=(3, SIDE, SIDE),
        classes=["a", "b", "c"],
        counts=lambda split: np.array([40, 30, 26]),
        ids=lambda split: numbers,
    )
    common = {"precision": "fp32", "learning_rate": 0.01, "batch_size": BATCH, "compile": "off"}
    return make_config({"model": model, "epochs": 10, **common, **settings}), dataset


def make(model="lenet", count=IMAGES, module=None, device=DEVICE, world=None, **settings):
    """(update, loader) on a device, for images of noise. module: a net of the test's own."""
    config, dataset = config_and_images(model, count, **settings)
    images, numbers = dataset.images, dataset.ids(TRAIN)
    normalization = measure_normalization(images, numbers)
    net = make_net(config, dataset, device, module).train()
    update = make_update(config, net, dataset, normalization, device, world)
    mixes = update.augmentation.mixes
    loader = Loader(images.to(device), numbers, BATCH, device, with_next=mixes)
    return update, loader


def steady(machine, update, loader, steps):
    """Run some steps of an epoch, then those of another, of which alone the record is kept.

    Returns the lines of code at which torch says that the host waits; neither they nor the record
    have the waits of an epoch's first step, which draws its order.
    """
    for epoch, count in ((0, min(steps, 3)), (1, steps)):
        machine.record.clear()
        batches = islice(loader.epoch(0, epoch), count)
        update(next(batches), epoch, 0)
        if IS_SIMULATED:
            machine.record.waits.clear()
        with watch_waits(DEVICE) as lines:
            for step, batch in enumerate(batches, 1):
                update(batch, epoch, step)
    return lines
