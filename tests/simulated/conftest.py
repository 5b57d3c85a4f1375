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
    """The simulated device is there within the block; a real one always is."""
    if not IS_SIMULATED:
        yield RealDevice()
        return
    with simulated_device() as machine:
        machine.reset()
        yield machine


@pytest.fixture
def machine():
    """The device, on within the test; faults that nothing raised fail it."""
    with device_on() as machine:
        yield machine
        machine.check()


@pytest.fixture
def simulated_machine(machine):
    """The simulated device alone, for what a real one would not notice."""
    if not IS_SIMULATED:
        pytest.skip("only the simulated device notices it")
    return machine


@pytest.fixture(scope="session", autouse=True)
def as_exact_as_the_cpu():
    """A real device rounds nothing to TF32, and its kernels give the same bits each time."""
    if IS_SIMULATED:
        yield
        return
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # in this process, which is for these tests
    with deterministic():
        yield


def planted_images(count=60, side=12, classes=3):
    """Noise with a class's colour weakened: (images, labels)."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, side, side, 3), np.uint8)
    numbers = np.arange(count) % classes
    for image, number in zip(images, numbers, strict=True):
        image[:, :, number] //= 3
    return images, [f"class {number}" for number in numbers]


@pytest.fixture(autouse=True)
def no_page(monkeypatch):
    """No report.html: drawing it, which no device changes, takes half of a small run's time."""
    monkeypatch.setattr(page, "write_report", lambda folder: folder / "report.html")


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks():
    """Files need not survive a power cut here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def images():
    """Sixty of them, 12 x 12."""
    return planted_images()


@pytest.fixture
def machine_off():
    """A context in which the device is on, for tests that first use the CPU alone."""
    return device_on
