"""Run by tests/testing/test_simulated.py in another process: the simulated device changes torch."""

import os
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from on_device import IS_SIMULATED, RealDevice

from onsight.hardware.reproducible import deterministic
from onsight.report import page
from onsight_explain.simulated.install import simulated_device


@contextmanager
def device_on():
    """Provide the device within the block: the simulated one, or a real one."""
    if not IS_SIMULATED:
        yield RealDevice()
        return
    with simulated_device() as machine:
        machine.reset()
        yield machine


@pytest.fixture
def machine():
    """The device during the test; faults that raised no error fail the test."""
    with device_on() as machine:
        yield machine
        machine.check()


@pytest.fixture
def simulated_machine(machine):
    """The simulated device only, for checks that a real one does not perform."""
    if not IS_SIMULATED:
        pytest.skip("only the simulated device checks this")
    return machine


@pytest.fixture(scope="session", autouse=True)
def as_exact_as_the_cpu():
    """On a real device, turn off TF32 and use deterministic kernels."""
    if IS_SIMULATED:
        yield
        return
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # this process only runs these tests
    with deterministic():
        yield


def planted_images(count=60, side=12, classes=3):
    """Return (images, labels): noise in which each class has one weaker colour channel."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, side, side, 3), np.uint8)
    numbers = np.arange(count) % classes
    for image, number in zip(images, numbers, strict=True):
        image[:, :, number] //= 3
    return images, [f"class {number}" for number in numbers]


@pytest.fixture(autouse=True)
def no_page(monkeypatch):
    """Skip report.html: it takes half of a small run's time and is the same on any device."""
    monkeypatch.setattr(page, "write_report", lambda folder: folder / "report.html")


@pytest.fixture(scope="session", autouse=True)
def no_fsync():
    """Skip fsync: these files need not survive a power failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def images():
    """Sixty images of 12x12, with labels."""
    return planted_images()


@pytest.fixture
def machine_off():
    """A context that provides the device, for tests that first use the CPU alone."""
    return device_on
