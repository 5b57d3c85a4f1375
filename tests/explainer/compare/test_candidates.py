"""Accelerators are mocked where torch reports them, so no test needs one."""

import pytest
import torch

from onsight.config import make_config
from onsight.errors import ConfigError, DeviceError
from onsight.explainer.compare_devices import (
    choose_batch_sizes,
    choose_candidates,
    parse_batch_sizes,
    second_batch_size,
)
from onsight.tune import plan


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(plan, "usable_cores", lambda: 8)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def names(devices=(), **fields):
    return [candidate.name for candidate in choose_candidates(devices, make_config(fields))]


def test_the_default_is_the_cpu_and_every_accelerator(two_gpus):
    assert names() == ["cpu", "cuda:0", "cuda:1"]
    assert names(device="all") == ["cpu", "cuda:0", "cuda:1"]
    assert names(device="cuda:1") == ["cpu", "cuda:1"]


def test_devices_keep_their_order_and_get_what_a_run_would_choose(two_gpus):
    gpu, cpu = choose_candidates(["cuda", "cpu"], make_config({}))
    assert (gpu.device, gpu.precision) == (torch.device("cuda:0"), "bf16")
    assert (cpu.device, cpu.precision, cpu.threads) == (torch.device("cpu"), "fp32", 8)
    assert choose_candidates(["cuda"], make_config({"precision": "fp32"}))[0].precision == "fp32"


def test_a_cpu_without_accelerators_gives_threads_and_precisions():
    expected = ["1 thread fp32", "8 threads fp32", "1 thread bf16", "8 threads bf16"]
    assert names() == names(["cpu"]) == expected
    assert names(threads=3)[1] == "3 threads fp32"
    tentative = [one.tentative for one in choose_candidates((), make_config({}))]
    assert tentative == [False, False, True, True]


def test_a_given_precision_is_kept_and_one_core_gives_one_thread_count():
    assert names(precision="bf16") == ["1 thread", "8 threads"]
    assert names(precision="bf16", threads=1) == ["1 thread"]
    assert not choose_candidates((), make_config({"precision": "bf16"}))[0].tentative


def test_wrong_devices_are_refused(two_gpus):
    with pytest.raises(ConfigError, match="cpu twice"):
        names(["cpu", "cpu"])
    with pytest.raises(ConfigError, match="cuda:0 twice"):
        names(["cuda", "cpu", "cuda:0"])
    with pytest.raises(DeviceError, match="no device 'gpu'; available: cuda:0, cuda:1, cpu"):
        names(["cpu", "gpu"])


def test_default_batch_sizes_fit_the_images():
    assert choose_batch_sizes((), 128, 60_000) == [4, 32, 128, 512]
    assert choose_batch_sizes((), 64, 60_000) == [4, 32, 64, 128, 512]
    assert choose_batch_sizes((), 128, 97) == [4, 32, 97]
    assert choose_batch_sizes([32, 4], 128, 60_000) == [4, 32]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([0], "0 is not a batch size"), ([4, 4], "4 twice"), ([4, 98], "more than the 97 training")],
)
def test_wrong_batch_sizes_are_refused(sizes, expected):
    with pytest.raises(ConfigError, match=expected):
        choose_batch_sizes(sizes, 128, 97)


def test_batch_sizes_are_parsed():
    assert parse_batch_sizes("4,32, 128") == [4, 32, 128]
    for text in ("4,", "4;32", "4.5", "four"):
        with pytest.raises(ConfigError, match="whole numbers separated by commas"):
            parse_batch_sizes(text)


@pytest.mark.parametrize(
    ("size", "images", "expected"),
    [(512, 1000, 128), (8, 1000, 2), (4, 1000, 32), (1, 1000, 8), (4, 10, 10), (4, 4, None)],
)
def test_a_second_size_is_far_enough_and_possible(size, images, expected):
    assert second_batch_size(size, images) == expected
