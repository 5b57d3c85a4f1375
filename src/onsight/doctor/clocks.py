"""Clock speeds: whether the processor or a GPU is throttled by heat or power."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from onsight.doctor.line import Line
from onsight.doctor.smi import SmiError, UnknownField, ask
from onsight.hardware.ceilings import measure_flops
from onsight.hardware.devices import available_devices
from onsight.words import plural

_CPUS = Path("/sys/devices/system/cpu")
_CAPPED_SHARE = 0.9
_BURST_SECONDS = 0.1
# Bits of the NVIDIA Management Library (nvmlClocksEventReasons) that mean lost speed.
_SLOWDOWNS = {
    0x08: "a hardware slowdown",
    0x20: "heat",
    0x40: "heat (by the hardware)",
    0x80: "the power supply's brake",
}
_POWER_CAP = 0x04

Answer = TypeVar("Answer")


def check_gpu_clocks() -> Line | None:
    """Whether a GPU under load is throttled; None where NVIDIA's driver does not say."""
    try:
        rows = _under_load(_ask_reasons)
    except SmiError:
        return None
    slowed, capped = [], 0
    for row in rows:
        bits = _bits(row["active"])
        why = [words for bit, words in _SLOWDOWNS.items() if bits & bit]
        if why:
            slowed.append(f"GPU {row['index']} ({row['temperature']} °C) by {' and '.join(why)}")
        capped += bool(bits & _POWER_CAP)
    figures = {"gpus": rows}
    if slowed:
        return Line(
            "warning",
            f"Throttled at this moment: {'; '.join(slowed)}.",
            "Check that air can flow and its fans turn; on a server, tell its administrator.",
            figures,
        )
    if capped:
        return Line(
            "note",
            f"{plural(capped, 'GPU')} at the power limit, which is normal under load.",
            figures=figures,
        )
    return Line("ok", "No GPU is throttled by heat or power.", "", figures)


def check_clocks() -> Line | None:
    """Whether the processor is held below its full clock speed; None where that is unknown."""
    throttles = max(_numbers("thermal_throttle/core_throttle_count"), default=0)
    fastest = max(_numbers("cpufreq/cpuinfo_max_freq"), default=0)
    allowed = max(_numbers("cpufreq/scaling_max_freq"), default=0)
    governors, drivers = _words("cpufreq/scaling_governor"), _words("cpufreq/scaling_driver")
    if not (fastest or throttles or governors):
        return None  # as in most virtual machines
    figures = {
        "throttles": throttles,
        "max_hertz": fastest * 1000,
        "allowed_hertz": allowed * 1000,
        "governors": sorted(governors),
    }
    if 0 < allowed < _CAPPED_SHARE * fastest:
        return Line(
            "warning",
            f"The processor is held at {allowed / 1e6:.1f} GHz of its {fastest / 1e6:.1f} GHz, "
            "perhaps by a power-saving setting or a weak power supply.",
            "Choose the performance profile; plug a laptop in.",
            figures,
        )
    if "powersave" in governors and not any("pstate" in name for name in drivers):
        return Line(
            "warning",
            "The processor stays at its lowest clock speed (governor powersave).",
            "Let it run faster:\nsudo cpupower frequency-set --governor performance",
            figures,
        )
    if throttles:
        return Line(
            "note",
            f"The processor was throttled by heat {plural(throttles, 'time')} since the machine "
            "started; if long runs lose speed, check its cooling.",
            figures=figures,
        )
    return Line("ok", "The processor is not held below its full clock speed.", "", figures)


def _ask_reasons() -> list[dict[str, str]]:
    try:
        name = "clocks_event_reasons.active"
        rows = ask("gpu", "index", "temperature.gpu", name)
    except UnknownField:
        name = "clocks_throttle_reasons.active"  # its name before 2023
        rows = ask("gpu", "index", "temperature.gpu", name)
    return [
        {"index": row["index"], "temperature": row["temperature.gpu"], "active": row[name]}
        for row in rows
    ]


def _under_load(question: Callable[[], Answer]) -> Answer:
    """Ask while the GPUs are kept busy: an idle one is never throttled."""
    gpus = [torch.device(name) for name in available_devices() if name.startswith("cuda")]
    with ThreadPoolExecutor(1 + len(gpus)) as pool:
        list(pool.map(_burst, gpus))  # starts CUDA on each, which takes a while
        answer = pool.submit(question)
        for load in [pool.submit(_burst, gpu, answer) for gpu in gpus]:
            load.result()
        return answer.result()


def _burst(gpu: torch.device, until: Future[Any] | None = None) -> None:
    """Keep a GPU busy for a moment, and on until something is done."""
    measure_flops(gpu, torch.float32, seconds=_BURST_SECONDS)
    while until and not until.done():
        measure_flops(gpu, torch.float32, seconds=_BURST_SECONDS)


def _bits(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:  # [N/A]
        return 0


def _numbers(name: str) -> list[int]:
    return [int(text) for text in _texts(name) if text.isdecimal()]


def _words(name: str) -> set[str]:
    return set(_texts(name))


def _texts(name: str) -> list[str]:
    """The contents of a file of every CPU that has it and lets it be read."""
    found = []
    for path in _CPUS.glob(f"cpu[0-9]*/{name}"):
        try:
            found.append(path.read_text(encoding="utf-8").strip())
        except OSError:
            continue
    return found
