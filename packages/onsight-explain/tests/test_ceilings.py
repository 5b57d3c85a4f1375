"""Ceilings measured with a fake clock: the cost of every operation is known, hence its rate."""

import types

import pytest
import torch

from onsight_explain import ceilings
from onsight_explain.ceilings import Ceilings, measure_ceilings

CPU = torch.device("cpu")
FAKE_GPU = torch.device("meta")  # computes nothing, and is not the CPU


class Machine:
    """A clock that only the operations advance; slow: by which factor each call takes longer.

    start_seconds, wait_seconds: extra time of the first call, and of each wait for a GPU.
    pending: seconds of work that a GPU has not done yet.
    """

    def __init__(
        self, flops_per_second, slow=(1.0,), is_gpu=False, start_seconds=0.0, wait_seconds=0.0
    ):
        self.rate, self.slow, self.is_gpu = flops_per_second, slow, is_gpu
        self.start_seconds, self.wait_seconds = start_seconds, wait_seconds
        self.now = self.pending = 0.0
        self.sizes = []
        self.threads = []

    def perf_counter(self):
        return self.now

    def multiply(self, left, right, out):
        factor = self.slow[len(self.sizes) % len(self.slow)]
        if not self.sizes:
            self._spend(self.start_seconds)
        self.sizes.append(left.shape[0])
        self.threads.append(torch.get_num_threads())
        self._spend(factor * 2 * left.shape[0] ** 3 / self.rate)

    def _spend(self, seconds):
        if self.is_gpu:
            self.pending += seconds
        else:
            self.now += seconds

    def wait(self, device):
        assert device == FAKE_GPU
        self.now, self.pending = self.now + self.pending + self.wait_seconds, 0.0


@pytest.fixture
def plant(monkeypatch):
    def plant_machine(*args, **options):
        machine = Machine(*args, **options)
        clock = types.SimpleNamespace(perf_counter=machine.perf_counter)
        monkeypatch.setattr(ceilings, "time", clock)
        monkeypatch.setattr(torch, "mm", machine.multiply)
        monkeypatch.setattr(torch.accelerator, "synchronize", machine.wait)
        return machine

    return plant_machine


def test_each_multiplication_of_a_product_counts_as_two_flops(plant):
    plant(1e9)
    assert ceilings.measure_flops(CPU, torch.float32, seconds=0.1) == pytest.approx(1e9)


def test_the_best_counts_and_the_first_call_does_not(plant):
    plant(1e9, slow=(7.0, 3.0, 1.0, 4.0))
    assert ceilings.measure_flops(CPU, torch.float32, seconds=1.0) == pytest.approx(1e9)


def test_a_fast_processor_gets_large_matrices_and_a_slow_one_small_ones(plant):
    fast = plant(1e14, start_seconds=0.4)
    assert ceilings.measure_flops(CPU, torch.float32, seconds=0.3) == pytest.approx(1e14)
    assert fast.sizes[-1] == 2048
    slow = plant(1e9)
    ceilings.measure_flops(CPU, torch.float32, seconds=0.3)
    assert set(slow.sizes) == {256}
    assert slow.now < 0.5


def test_a_gpu_is_waited_for(plant):
    machine = plant(1e14, is_gpu=True)
    found = ceilings.measure_flops(FAKE_GPU, torch.bfloat16, seconds=0.1)
    assert found == pytest.approx(1e14)
    assert machine.sizes[-1] == 8192
    assert machine.pending == 0


def test_synchronizing_with_a_gpu_hardly_affects_the_figure(plant):
    plant(1e18, is_gpu=True, wait_seconds=2e-5)  # 20 times as long as a product
    found = ceilings.measure_flops(FAKE_GPU, torch.bfloat16, seconds=0.1)
    assert found == pytest.approx(1e18, rel=0.03)


def test_one_slow_moment_does_not_choose_small_matrices(plant):
    machine = plant(1e14, slow=(1e6, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0))
    ceilings.measure_flops(CPU, torch.float32, seconds=0.3)
    assert machine.sizes[-1] == 2048


def test_matrices_fit_into_free_memory(plant, monkeypatch):
    machine = plant(1e15)
    monkeypatch.setattr(ceilings, "free_memory_bytes", lambda device: 6 * 512 * 512 * 4)
    ceilings.measure_flops(CPU, torch.float32, seconds=0.01)
    assert max(machine.sizes) == 512


def test_threads_are_set_only_for_the_measurement(plant, monkeypatch):
    machine = plant(1e9)
    monkeypatch.setattr(ceilings, "measure_copy", lambda device, seconds: 1.0)
    before = torch.get_num_threads()
    measure_ceilings(CPU, threads=before + 1, seconds=0.01)
    assert set(machine.threads) == {before + 1}
    assert torch.get_num_threads() == before


@pytest.fixture
def half_a_second(monkeypatch):
    """Make every call take half a second, and run it once."""

    def best_seconds(call, device, seconds):
        call()
        return 0.5

    monkeypatch.setattr(ceilings, "_best_seconds", best_seconds)
    monkeypatch.setattr(ceilings, "free_memory_bytes", lambda device: 16 << 20)


def test_a_copy_reads_and_writes(half_a_second):
    assert ceilings.measure_copy(CPU) == 2 * (2 << 20) / 0.5


@pytest.mark.parametrize("pinned", [False, True])
def test_an_upload_counts_once_and_uses_the_requested_memory(half_a_second, monkeypatch, pinned):
    asked = []
    ones = torch.ones

    def record(*args, pin_memory=False, **options):
        asked.append(pin_memory)
        return ones(*args, **options)

    monkeypatch.setattr(torch, "ones", record)
    assert ceilings.measure_upload(FAKE_GPU, pinned) == (2 << 20) / 0.5
    assert asked == [pinned]


@pytest.mark.parametrize(
    ("free", "expected"),
    [(0, 256 << 20), (100 << 30, 256 << 20), (80 << 20, 10 << 20), (9, 1 << 20)],
)
def test_buffers_are_smaller_when_memory_is_short(monkeypatch, free, expected):
    monkeypatch.setattr(ceilings, "free_memory_bytes", lambda device: free)
    assert ceilings._buffer_bytes(CPU, 256 << 20) == expected


def test_ceilings_of_the_real_processor(monkeypatch):
    monkeypatch.setattr(ceilings, "_COPY_BYTES", 1 << 20)
    state = torch.get_rng_state()
    found = measure_ceilings(CPU, threads=1, seconds=0.005)
    assert found.flops_per_second.keys() == {"fp32", "bf16"}
    assert all(rate > 1e6 for rate in found.flops_per_second.values())
    assert found.copy_bytes_per_second > 1e6
    assert found.upload_bytes_per_second is None
    assert found.threads == 1
    assert torch.equal(torch.get_rng_state(), state)  # a run's random numbers are unaffected


def test_an_unsupported_precision_is_left_out(plant, monkeypatch):
    machine = plant(1e9)

    def multiply(left, right, out):
        if left.dtype == torch.bfloat16:
            raise RuntimeError("not implemented for 'BFloat16'")
        machine.multiply(left, right, out)

    monkeypatch.setattr(torch, "mm", multiply)
    monkeypatch.setattr(ceilings, "measure_copy", lambda device, seconds: 1.0)
    found = measure_ceilings(CPU, seconds=0.01)
    assert found.flops_per_second.keys() == {"fp32"}
    assert found.speedup("bf16") is None


@pytest.mark.parametrize(
    ("capability", "names"),
    [((8, 0), ["fp32", "tf32", "bf16", "fp16"]), ((7, 5), ["fp32", "bf16", "fp16"])],
)
def test_tf32_is_a_figure_of_its_own_where_there_is_any(monkeypatch, capability, names):
    rounding = []

    def measure(device, dtype, seconds):
        rounding.append((dtype, torch.backends.cuda.matmul.fp32_precision))
        return float(len(rounding))

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(ceilings, "measure_flops", measure)
    monkeypatch.setattr(ceilings, "measure_copy", lambda device, seconds: 1.0)
    monkeypatch.setattr(ceilings, "measure_upload", lambda device, pinned, seconds: 1.0)
    before = torch.backends.cuda.matmul.fp32_precision
    found = measure_ceilings(torch.device("cuda:1")).flops_per_second
    assert list(found) == names
    assert rounding[0] == (torch.float32, "ieee")
    assert rounding.count((torch.float32, "tf32")) == names.count("tf32")
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_the_peak_of_a_step_in_fp32_is_what_its_convolutions_reach():
    assert Ceilings({"fp32": 2.0, "tf32": 9.0}, 1.0).peak("fp32") == ("tf32", 9.0)
    assert Ceilings({"fp32": 2.0, "bf16": 9.0}, 1.0).peak("fp32") == ("fp32", 2.0)
    assert Ceilings({"fp32": 2.0, "tf32": 5.0, "bf16": 9.0}, 1.0).peak("bf16") == ("bf16", 9.0)
    assert Ceilings({"fp32": 2.0, "tf32": 5.0}, 1.0).peak("fp16") is None


def test_speedup_is_over_fp32():
    found = Ceilings({"fp32": 2e9, "bf16": 5e9}, copy_bytes_per_second=1.0)
    assert found.speedup("bf16") == 2.5
    assert found.speedup("fp16") is None
