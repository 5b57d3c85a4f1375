"""Prefetching to a mocked accelerator, whose stream records what it is asked to do."""

import types
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from onsight.data import loader as loader_module
from onsight.data.loader import Images, Loader, prefetch
from onsight_explain.devices import has_streams

GPU = torch.device("cuda:0")


class Accelerator:
    """A stand-in for torch.cuda; `told` records everything that happened, in order."""

    def __init__(self):
        self.told = []
        self.on = "main"

    def Stream(self, device):  # noqa: N802
        assert device == GPU
        return types.SimpleNamespace(record_event=lambda: self.note("event"))

    def note(self, what):
        self.told.append((what, self.on))
        return len(self.told)

    @contextmanager
    def stream(self, queue):
        self.on = "side"
        yield
        self.on = "main"

    def current_stream(self, device):
        return types.SimpleNamespace(wait_event=lambda event: self.note(f"wait {event}"))


@pytest.fixture
def accelerator(monkeypatch):
    mock = Accelerator()
    monkeypatch.setattr(torch, "cuda", mock)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: False)
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda tensor: (mock.note("pin"), tensor.clone())[1]
    )
    real = torch.Tensor.to

    def to(tensor, device, non_blocking=False):
        if device != GPU:
            return real(tensor, device)
        assert non_blocking
        mock.note(f"send {int(tensor[0])}")
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, stream: mock.note(f"keep {int(tensor[0])}")
    )
    return mock


@pytest.fixture
def locked(monkeypatch):
    """The addresses of page-locked memory: torch gives none where there is no accelerator."""
    addresses, real = set(), torch.empty

    def empty(*size, pin_memory=False, **named):
        tensor = real(*size, **named)
        if pin_memory:
            addresses.add(tensor.data_ptr())
        return tensor

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() in addresses)
    return addresses


def make_images():
    pixels = torch.arange(20, dtype=torch.uint8).view(20, 1)
    return Images(pixels, torch.arange(20).flip(0), torch.arange(20) % 3, (1, 1, 1))


def batches(accelerator, count):
    for number in range(count):
        accelerator.note(f"gather {number}")
        yield (torch.tensor([number]),)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_all_come_once_in_order(accelerator, count):
    got = [int(item) for (item,) in prefetch(batches(accelerator, count), GPU)]
    assert got == list(range(count))


def test_the_next_is_sent_before_one_is_handed_out_and_waited_for_by_its_own_event(accelerator):
    going = prefetch(batches(accelerator, 3), GPU)
    next(going)
    assert accelerator.told == [
        ("gather 0", "main"),
        ("pin", "side"),
        ("send 0", "side"),
        ("event", "side"),
        ("gather 1", "main"),
        ("pin", "side"),
        ("send 1", "side"),
        ("event", "side"),
        ("wait 4", "main"),
        ("keep 0", "main"),
    ]
    accelerator.told.clear()
    next(going)
    # Two calls came after the first event's eight, so the second batch's event was the eighth.
    assert accelerator.told[-2:] == [("wait 8", "main"), ("keep 1", "main")]
    assert ("send 2", "side") in accelerator.told


def test_what_is_in_locked_memory_is_not_copied_again(accelerator, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    list(prefetch(batches(accelerator, 2), GPU))
    assert ("pin", "side") not in accelerator.told


def test_stopping_early_stops_the_gathering(accelerator):
    source = batches(accelerator, 100)
    going = prefetch(source, GPU)
    next(going)
    going.close()
    assert sum(what.startswith("gather") for what, _ in accelerator.told) == 2


def test_images_are_gathered_into_locked_memory_and_copied_from_there(accelerator, locked):
    loader = Loader(make_images(), torch.arange(20), 6, GPU)
    plain = replace(loader, device=torch.device("cpu"))
    for going in (loader.epoch(1, 1), loader.in_order()):
        sent = [batch.images for batch in going]
        assert all(images.data_ptr() in locked for images in sent)
    expected = [batch.images for batch in plain.in_order()]
    assert all(map(torch.equal, sent, expected))
    assert not any(images.data_ptr() in locked for images in expected)
    copies = sum(what == "pin" for what, _ in accelerator.told)
    assert copies == 3 * (loader.steps + len(sent))  # labels, numbers and all labels; no images


def test_a_copy_to_an_apple_gpu_is_waited_for_as_nothing_keeps_its_source(monkeypatch):
    asked, mps = [], torch.device("mps")
    real = torch.Tensor.to

    def to(tensor, device, non_blocking=False):
        asked.append((device.type, non_blocking))
        return real(tensor, "cpu")

    monkeypatch.setattr(torch.Tensor, "to", to)
    list(Loader(make_images(), torch.arange(20), 6, mps).in_order())
    assert set(asked) == {("cpu", False), ("mps", False)}
    loader_module._to_device(torch.zeros(1), GPU)
    assert asked[-1] == ("cuda", True)


def test_the_loader_prefetches_only_for_accelerators_and_what_is_not_there_yet(monkeypatch, locked):
    asked = []
    monkeypatch.setattr(
        loader_module, "prefetch", lambda batches, device: asked.append(device) or batches
    )
    images = make_images()
    plain = list(Loader(images, torch.arange(20), 6, torch.device("cpu")).epoch(1, 1))
    assert not asked
    sent = list(Loader(images, torch.arange(20), 6, GPU).epoch(1, 1))
    assert asked == [GPU]
    for batch, sent_batch in zip(plain, sent, strict=True):
        assert all(map(torch.equal, batch[:4], sent_batch[:4]))
    monkeypatch.setattr(loader_module, "has_streams", lambda device: True)
    there = torch.device("meta")  # stands in for a GPU on which the images are
    list(Loader(images.to(there), torch.arange(20), 6, there).in_order())
    assert asked == [GPU]


@pytest.mark.parametrize(
    ("name", "expected"), [("cuda", True), ("xpu", True), ("mps", False), ("cpu", False)]
)
def test_which_devices_copy_while_computing(name, expected):
    assert has_streams(torch.device(name)) is expected
