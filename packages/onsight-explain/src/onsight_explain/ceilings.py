"""Measure the ceilings of a device: the highest FLOP/s and bytes per second it reaches."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from onsight_explain.devices import (
    free_memory_bytes,
    has_streams,
    has_tf32,
    release_cached_memory,
)

_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

_CPU_SIZES = (256, 512, 1024, 2048)
_GPU_SIZES = (1024, 2048, 4096, 8192)
_MAX_PRODUCT_SHARE = 1 / 3  # fraction of the time spent on one product
_COPY_BYTES = 256 << 20  # larger than the caches
_UPLOAD_BYTES = 64 << 20
_MIN_BUFFER_BYTES = 1 << 20
_MIN_SECONDS = 2e-3  # shortest timing; below it the clock and the synchronization matter
_MIN_TIMINGS = 3  # the fastest counts; the first warms up

Call = Callable[[], object]


@dataclass(frozen=True)
class Ceilings:
    """The highest speeds that a device reached."""

    # Of a large matrix product, by precision: fp32, tf32, bf16, fp16. Convolutions in fp32 round
    # to TF32 on NVIDIA's GPUs.
    flops_per_second: dict[str, float]
    copy_bytes_per_second: float  # within the device's memory, bytes read plus bytes written
    # From the host's memory; None for a device without separate memory.
    upload_bytes_per_second: float | None = None
    pinned_upload_bytes_per_second: float | None = None
    threads: int | None = None  # CPU threads; None for other devices

    def speedup(self, precision: str) -> float | None:
        """Return how many times as fast as fp32 a precision is, or None if it was not measured."""
        fast, plain = (self.flops_per_second.get(name) for name in (precision, "fp32"))
        return fast / plain if fast and plain else None

    def peak(self, precision: str) -> tuple[str, float] | None:
        """Return the arithmetic that a step uses in a precision, and its FLOP/s, if measured.

        A step in fp32 uses TF32 where there is any, because convolutions round to it.
        """
        name = "tf32" if precision == "fp32" and "tf32" in self.flops_per_second else precision
        rate = self.flops_per_second.get(name)
        return (name, rate) if rate else None


def measure_ceilings(
    device: torch.device, threads: int | None = None, seconds: float = 0.3
) -> Ceilings:
    """Measure a device, spending roughly this many seconds per figure.

    threads: of the CPU; None keeps torch's setting. Precisions that the device does not support
    are omitted.
    """
    with cpu_threads(threads) as thread_count:
        flops = {name: _measure_precision(device, name, seconds) for name in _precisions(device)}
        copy_rate = measure_copy(device, seconds)
    has_link = has_streams(device)
    ceilings = Ceilings(
        flops_per_second={name: rate for name, rate in flops.items() if rate},
        copy_bytes_per_second=copy_rate,
        upload_bytes_per_second=measure_upload(device, False, seconds / 2) if has_link else None,
        pinned_upload_bytes_per_second=(
            measure_upload(device, True, seconds / 2) if has_link else None
        ),
        threads=thread_count if device.type == "cpu" else None,
    )
    release_cached_memory(device)
    return ceilings


def measure_flops(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """Return FLOP/s of a large matrix product; a multiplication and an addition count as two."""
    sizes, max_seconds = _sizes(device, dtype), _MAX_PRODUCT_SHARE * seconds
    for size in sizes:
        multiply = _matrix_product(device, dtype, size)
        if size == sizes[-1] or 8 * _best_seconds(multiply, device, 0) > max_seconds:
            break
    return 2 * size**3 / _best_seconds(multiply, device, seconds)


def measure_copy(device: torch.device, seconds: float = 0.2) -> float:
    """Return bytes per second, read plus written, of a copy within the device's memory."""
    count = _buffer_bytes(device, _COPY_BYTES) // 4
    source = torch.ones(count, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)  # written once, so that its pages exist
    seconds_per_copy = _best_seconds(lambda: target.copy_(source), device, seconds)
    return 2 * source.nbytes / seconds_per_copy


def measure_upload(device: torch.device, pinned: bool, seconds: float = 0.1) -> float:
    """Return bytes per second from the host's memory, pageable or pinned, to a GPU's."""
    count = _buffer_bytes(device, _UPLOAD_BYTES) // 4
    source = torch.ones(count, dtype=torch.float32, pin_memory=pinned)
    target = torch.zeros(count, dtype=torch.float32, device=device)
    seconds_per_copy = _best_seconds(
        lambda: target.copy_(source, non_blocking=pinned), device, seconds
    )
    return source.nbytes / seconds_per_copy


def _precisions(device: torch.device) -> list[str]:
    """Return the precisions to measure, fp32 first."""
    if device.type == "cpu":
        return ["fp32", "bf16"]
    return [name for name in _DTYPES if name != "tf32" or has_tf32(device)]


def _measure_precision(device: torch.device, precision: str, seconds: float) -> float | None:
    """Return the FLOP/s in a precision, or None if the device does not support it."""
    try:
        with _rounding("tf32" if precision == "tf32" else "ieee"):
            return measure_flops(device, _DTYPES[precision], seconds=seconds)
    except (RuntimeError, TypeError):  # not every device supports every dtype
        return None


@contextmanager
def _rounding(precision: str) -> Iterator[None]:
    """Round fp32 matrix products on NVIDIA's GPUs as `ieee` or `tf32` within a block."""
    previous = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = previous


def _matrix_product(device: torch.device, dtype: torch.dtype, size: int) -> Call:
    """Return a product of two square matrices, made without using a run's random numbers."""
    # Neither zeros nor a ramp: on those a GPU draws less power and clocks higher.
    numbers = torch.arange(size * size, dtype=torch.float32, device=device).mul_(12.9898).sin_()
    left = numbers.view(size, size).to(dtype)
    right = left.clone()
    product = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=product)


def _sizes(device: torch.device, dtype: torch.dtype) -> list[int]:
    """Return the sides of square matrices to try, of which three fit in half the free memory."""
    sizes = _CPU_SIZES if device.type == "cpu" else _GPU_SIZES
    room = free_memory_bytes(device) or math.inf
    fitting = [size for size in sizes if 6 * size * size * dtype.itemsize <= room]
    return fitting or [sizes[0]]


def _buffer_bytes(device: torch.device, wanted: int) -> int:
    """Return the bytes wanted, or an eighth of the free memory if that is less."""
    room = free_memory_bytes(device)
    return max(_MIN_BUFFER_BYTES, min(wanted, room // 8)) if room else wanted


def _best_seconds(call: Call, device: torch.device, seconds: float) -> float:
    """Return the shortest time of one call. Short calls are timed several at a time."""
    best, calls, timings = math.inf, 1, 0
    end = time.perf_counter() + seconds
    while timings < _MIN_TIMINGS or time.perf_counter() < end:
        took = _time(call, calls, device)
        best = min(best, took / calls)
        timings += 1
        if took < _MIN_SECONDS:
            calls *= 2
    return best


def _time(call: Call, calls: int, device: torch.device) -> float:
    """Return the seconds that a number of calls take, including the device's work."""
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
def cpu_threads(count: int | None) -> Iterator[int]:
    """Set torch's number of CPU threads within a block, unless None; yield the number in use."""
    previous = torch.get_num_threads()
    if count is None:
        yield previous
        return
    torch.set_num_threads(count)
    try:
        yield count
    finally:
        torch.set_num_threads(previous)
