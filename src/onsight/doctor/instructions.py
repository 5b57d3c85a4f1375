"""Instructions that make arithmetic fast: vector units, and bf16 in hardware."""

import os
import platform
from pathlib import Path

import torch

from onsight.accelerator import has_bf16
from onsight.doctor.line import Line
from onsight.words import listed

_CPUINFO = Path("/proc/cpuinfo")
_CHOOSES = "ATEN_CPU_CAPABILITY"  # can make torch use older instructions than there are
_NO_VECTORS = ("DEFAULT", "NO AVX")
_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # the last is ARM's
_SHOWN = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX-512 bf16",
    "avx512_fp16": "AVX-512 fp16",
    "amx_bf16": "AMX bf16",
    "amx_fp16": "AMX fp16",
    "asimd": "NEON",
    "sve": "SVE",
    "bf16": "bf16",
}


def check_instructions() -> Line:
    """Which vector and bf16 instructions the processor and the GPU have."""
    used, flags = torch.backends.cpu.get_cpu_capability(), _flags()
    shown = [words for flag, words in _SHOWN.items() if flag in flags]
    gpus = _bf16_of_gpus()
    figures = {
        "torch_uses": used,
        "instructions": shown,
        "cpu_bf16": None,
        "gpu_bf16": gpus and all(gpus.values()),
    }
    if os.environ.get(_CHOOSES):
        return Line(
            "warning",
            f"{_CHOOSES}={os.environ[_CHOOSES]} restricts torch to {used}.",
            f"Let torch choose:\nunset {_CHOOSES}",
            figures,
        )
    if used in _NO_VECTORS and platform.machine() in ("x86_64", "AMD64"):
        return Line(
            "warning",
            "The processor has no AVX2 instructions, which torch needs to be fast.",
            "Use a processor made since 2013; a virtual machine may hide what its host has.",
            figures,
        )
    if not flags:
        return Line("ok", f"torch uses {used}.{_gpu_words(gpus)}", "", figures)
    native = bool(flags & _BF16)
    how = "runs in hardware" if native else "is emulated, and slower than fp32"
    return Line(
        "ok" if native else "note",
        f"The processor has {', '.join(shown) or 'no vector instructions'}; torch uses {used}; "
        f"bf16 {how}.{_gpu_words(gpus)}",
        figures=figures | {"cpu_bf16": native},
    )


def _flags() -> set[str]:
    """The processor's features as the Linux kernel lists them; empty on other systems."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    listed = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return set(next(listed, "").split())


def _bf16_of_gpus() -> dict[str, bool] | None:
    """Whether each GPU computes bf16 in hardware; None without any."""
    if not torch.cuda.is_available():
        return None
    names = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return {name: has_bf16(torch.device(name)) for name in names}


def _gpu_words(gpus: dict[str, bool] | None) -> str:
    """One sentence; it names GPUs if they differ."""
    if not gpus:
        return ""
    slow = [name for name, native in gpus.items() if not native]
    if 0 < len(slow) < len(gpus):
        return f" bf16 is emulated on {listed(slow)} only."
    who = "The GPU computes" if len(gpus) == 1 else "The GPUs compute"
    return f" {who} bf16 {'by emulation only' if slow else 'in hardware'}."
