"""What several ranks need: torch's collective backends and the loopback interface."""

import os
import socket

import torch
import torch.distributed as dist

from onsight.doctor.line import Line

_LOOPBACK = ("lo", "lo0")


def check_ranks() -> Line:
    """Whether several processes could train together on this machine."""
    has_gloo, has_nccl = _backends()
    gpus = torch.cuda.device_count()
    has_loopback = os.name == "nt" or any(name in _LOOPBACK for _, name in socket.if_nameindex())
    figures = {"gloo": has_gloo, "nccl": has_nccl, "gpus": gpus, "loopback": has_loopback}
    if not has_gloo or not has_loopback:
        lack = "The loopback interface" if has_gloo else "gloo, torch's backend for CPU ranks,"
        return Line(
            "warning",
            f"{lack} is missing: training with one process works, --ranks 2 or more does not.",
            "Bring the interface up:\nsudo ip link set lo up"
            if has_gloo
            else "Install torch from https://pytorch.org/get-started/locally/",
            figures,
        )
    if gpus > 1 and not has_nccl:
        return Line(
            "warning",
            f"There are {gpus} GPUs, but this torch lacks NCCL, which they need to train together.",
            "On Linux, install torch from https://pytorch.org/get-started/locally/",
            figures,
        )
    which = "gloo and NCCL are" if has_nccl else "gloo is"
    return Line(
        "ok",
        f"Several processes can train together (--ranks): {which} available.",
        "",
        figures,
    )


def _backends() -> tuple[bool, bool]:
    """Whether torch has (gloo, NCCL)."""
    if not dist.is_available():
        return False, False
    return dist.is_gloo_available(), dist.is_nccl_available()
