"""Instructions that make arithmetic fast: vector units, and bf16 in hardware."""

import os
import platform
from pathlib import Path

import torch

from onsight.doctor.line import Line

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
    gpu = _bf16_of_gpu()
    figures = {"torch_uses": used, "instructions": shown, "cpu_bf16": None, "gpu_bf16": gpu}
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
        return Line("ok", f"torch uses {used}.{_gpu_words(gpu)}", "", figures)
    native = bool(flags & _BF16)
    how = "runs in hardware" if native else "is emulated, and slower than fp32"
    return Line(
        "ok" if native else "note",
        f"The processor has {', '.join(shown) or 'no vector instructions'}; torch uses {used}; "
        f"bf16 {how}.{_gpu_words(gpu)}",
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


def _bf16_of_gpu() -> bool | None:
    if not torch.cuda.is_available():
        return None
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def _gpu_words(native: bool | None) -> str:
    if native is None:
        return ""
    return f" The GPU computes bf16 {'in hardware' if native else 'by emulation only'}."
