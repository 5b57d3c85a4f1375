"""The ceilings of a device: the highest FLOP/s and bytes per second measured on it."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from onsight_explain import accelerator
from onsight_explain.devices import free_memory_bytes
from onsight_explain.memory import free_kept_memory

_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

_CPU_SIZES = (256, 512, 1024, 2048)
_GPU_SIZES = (1024, 2048, 4096, 8192)
_LONGEST_SHARE = 1 / 3  # of the time, that one product may take
_COPY_BYTES = 256 << 20  # larger than the caches
_UPLOAD_BYTES = 64 << 20
_LEAST_BYTES = 1 << 20
_SHORTEST_SECONDS = 2e-3  # below this, the clock and the synchronization would matter
_FEWEST = 3  # timings of which the best counts; the first warms up

Call = Callable[[], object]


@dataclass(frozen=True)
class Ceilings:
    """The highest speeds that a device reached.

    flops_per_second: of a large matrix product, by precision (fp32, tf32, bf16, fp16); tf32 is
    what convolutions in fp32 round to on NVIDIA's GPUs.
    copy_bytes_per_second: within its memory, bytes read plus bytes written. Uploads: from the
    host's memory, pageable or pinned; None without a link. threads: of the CPU.
    """

    flops_per_second: dict[str, float]
    copy_bytes_per_second: float
    upload_bytes_per_second: float | None = None
    pinned_upload_bytes_per_second: float | None = None
    threads: int | None = None

    def speedup(self, precision: str) -> float | None:
        """How many times as fast as fp32 a precision is; None if it was not measured."""
        fast, plain = (self.flops_per_second.get(name) for name in (precision, "fp32"))
        return fast / plain if fast and plain else None

    def peak(self, precision: str) -> tuple[str, float] | None:
        """The fastest arithmetic of a step in a precision, with its FLOP/s; None if not measured.

        That of a step in fp32 is TF32 where there is any: convolutions are rounded to it.
        """
        name = "tf32" if precision == "fp32" and "tf32" in self.flops_per_second else precision
        rate = self.flops_per_second.get(name)
        return (name, rate) if rate else None


def measure_ceilings(
    device: torch.device, threads: int | None = None, seconds: float = 0.3
) -> Ceilings:
    """Measure a device; seconds: roughly, per figure; threads: of the CPU, None to keep them.

    A precision that the device does not support is left out.
    """
    on_host = device.type == "cpu"
    with _cpu_threads(threads) as used:
        flops = {name: _flops_if_able(device, name, seconds) for name in _precisions(device)}
        copied = measure_copy(device, seconds)
    has_link = accelerator.has_streams(device)
    found = Ceilings(
        flops_per_second={name: rate for name, rate in flops.items() if rate},
        copy_bytes_per_second=copied,
        upload_bytes_per_second=measure_upload(device, False, seconds / 2) if has_link else None,
        pinned_upload_bytes_per_second=(
            measure_upload(device, True, seconds / 2) if has_link else None
        ),
        threads=used if on_host else None,
    )
    free_kept_memory(device)
    return found


def measure_flops(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """FLOP/s of a large matrix product; a multiplication and an addition count as two."""
    sizes, longest_seconds = _sizes(device, dtype), _LONGEST_SHARE * seconds
    for size in sizes:
        multiply = _matrix_product(device, dtype, size)
        if size == sizes[-1] or 8 * _best_seconds(multiply, device, 0) > longest_seconds:
            break
    return 2 * size**3 / _best_seconds(multiply, device, seconds)


def measure_copy(device: torch.device, seconds: float = 0.2) -> float:
    """Bytes per second of a copy within the device's memory, bytes read plus bytes written."""
    count = _buffer_bytes(device, _COPY_BYTES) // 4
    source = torch.ones(count, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)  # written once, so that its pages exist
    took = _best_seconds(lambda: target.copy_(source), device, seconds)
    return 2 * source.nbytes / took


def measure_upload(device: torch.device, pinned: bool, seconds: float = 0.1) -> float:
    """Bytes per second from the host's memory to a GPU's; pinned: from page-locked memory."""
    count = _buffer_bytes(device, _UPLOAD_BYTES) // 4
    source = torch.ones(count, dtype=torch.float32, pin_memory=pinned)
    target = torch.zeros(count, dtype=torch.float32, device=device)
    took = _best_seconds(lambda: target.copy_(source, non_blocking=pinned), device, seconds)
    return source.nbytes / took


def _precisions(device: torch.device) -> list[str]:
    """Those to measure, fp32 first."""
    if device.type == "cpu":
        return ["fp32", "bf16"]
    return [name for name in _DTYPES if name != "tf32" or accelerator.has_tf32(device)]


def _flops_if_able(device: torch.device, precision: str, seconds: float) -> float | None:
    try:
        with _rounding("tf32" if precision == "tf32" else "ieee"):
            return measure_flops(device, _DTYPES[precision], seconds=seconds)
    except (RuntimeError, TypeError):  # not every device supports every dtype
        return None


@contextmanager
def _rounding(precision: str) -> Iterator[None]:
    """Set how fp32 matrix products round on NVIDIA's GPUs within a block: ieee or tf32."""
    former = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = former


def _matrix_product(device: torch.device, dtype: torch.dtype, size: int) -> Call:
    """A product of two square matrices, made without drawing from a run's random numbers."""
    # Neither zeros nor a ramp: on those a GPU draws less power and clocks higher.
    numbers = torch.arange(size * size, dtype=torch.float32, device=device).mul_(12.9898).sin_()
    left = numbers.view(size, size).to(dtype)
    right = left.clone()
    product = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=product)


def _sizes(device: torch.device, dtype: torch.dtype) -> list[int]:
    """Sides of square matrices to try, in order, of which three fit in half the free memory."""
    sizes = _CPU_SIZES if device.type == "cpu" else _GPU_SIZES
    room = free_memory_bytes(device) or math.inf
    fitting = [size for size in sizes if 6 * size * size * dtype.itemsize <= room]
    return fitting or [sizes[0]]


def _buffer_bytes(device: torch.device, wanted: int) -> int:
    """The bytes wanted, or an eighth of the free memory if that is less."""
    room = free_memory_bytes(device)
    return max(_LEAST_BYTES, min(wanted, room // 8)) if room else wanted


def _best_seconds(call: Call, device: torch.device, seconds: float) -> float:
    """The shortest time of one call; short calls are timed several at a time."""
    best, calls, timings = math.inf, 1, 0
    end = time.perf_counter() + seconds
    while timings < _FEWEST or time.perf_counter() < end:
        took = _time(call, calls, device)
        best = min(best, took / calls)
        timings += 1
        if took < _SHORTEST_SECONDS:
            calls *= 2
    return best


def _time(call: Call, calls: int, device: torch.device) -> float:
    """Seconds for a number of calls, including the device's own work."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextmanager
def _cpu_threads(count: int | None) -> Iterator[int]:
    """Set torch's number of CPU threads within a block; None leaves it unchanged."""
    former = torch.get_num_threads()
    if count is None:
        yield former
        return
    torch.set_num_threads(count)
    try:
        yield count
    finally:
        torch.set_num_threads(former)
