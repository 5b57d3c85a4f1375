"""The measured peak speeds of the CPU and of every GPU, in words."""

from dataclasses import asdict

import torch

from onsight.doctor.line import Line
from onsight.words import plural
from onsight_explain.ceilings import Ceilings, measure_ceilings
from onsight_explain.cores import usable_cores
from onsight_explain.devices import available_devices
from onsight_explain.text import flops_words, rate_words

_SLOW_LINK_BYTES_PER_SECOND = 3e9


def check_cpu_speed(seconds: float = 0.3) -> Line:
    """Arithmetic and copies on all usable cores, and whether bf16 is faster than fp32."""
    found = measure_ceilings(torch.device("cpu"), usable_cores(), seconds)
    gain = found.speedup("bf16")
    slow = gain is not None and gain < 1
    return Line(
        "note" if slow else "ok",
        f"{plural(found.threads or 1, 'thread')}: {_describe(found)}."
        + (" bf16 is slower here; --precision auto uses fp32." if slow else ""),
        figures=asdict(found),
    )


def check_gpu_speed(seconds: float = 0.2) -> Line | None:
    """Arithmetic, copies and uploads of every accelerator; None if there are none."""
    names = available_devices()[:-1]
    if not names:
        return None
    found = {name: measure_ceilings(torch.device(name), seconds=seconds) for name in names}
    said = "; ".join(f"{name}: {_describe(one)}" for name, one in found.items())
    figures = {name: asdict(one) for name, one in found.items()}
    slow = [name for name, one in found.items() if _has_slow_link(one)]
    if slow:
        return Line(
            "warning",
            f"{said}. Uploads from memory to {', '.join(slow)} are slow.",
            "Onsight keeps images in the GPU's own memory if they fit. Check that the card is "
            "in a slot with all its PCIe lanes.",
            figures,
        )
    return Line("ok", f"{said}.", "", figures)


def _describe(found: Ceilings) -> str:
    rates = [
        f"{flops_words(rate)} in {name}{_gain(found, name)}"
        for name, rate in found.flops_per_second.items()
    ]
    said = f"matrix products {', '.join(rates)}; copies {rate_words(found.copy_bytes_per_second)}"
    if found.pinned_upload_bytes_per_second:
        said += f"; uploads {rate_words(found.pinned_upload_bytes_per_second)}"
    return said


def _gain(found: Ceilings, precision: str) -> str:
    gain = found.speedup(precision)
    return "" if precision == "fp32" or gain is None else f" ({gain:.1f}x)"


def _has_slow_link(found: Ceilings) -> bool:
    rate = found.pinned_upload_bytes_per_second
    return rate is not None and rate < _SLOW_LINK_BYTES_PER_SECOND
