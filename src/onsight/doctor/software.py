"""Checks of the software: library versions, child processes, ranks, pretrained weights."""

import multiprocessing
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist

from onsight.doctor.nvidia import install_commands
from onsight.doctor.report import CheckResult
from onsight.installation import package_version
from onsight.models.timm_nets import offline_hint, offline_models
from onsight.text import joined
from onsight_explain.python_process import child_command

_REQUIRED = ("torchvision", "timm", "numpy", "pillow", "simplejpeg", "safetensors")
_SHOWN = ("torchvision", "timm")
_CHILD_MODULE = "onsight.installation"  # imports little and ends at once
_DEADLINE_SECONDS = 30.0
_LOOPBACK_DEADLINE_SECONDS = 5.0


def check_versions() -> CheckResult:
    """Check that the required packages are installed and that torchvision works with torch."""
    versions = {name: package_version(name) for name in _REQUIRED}
    figures = {"python": sys.version.split()[0], "torch": str(torch.__version__), **versions}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return CheckResult(
            "problem",
            f"Not installed: {', '.join(missing)}.",
            f"Install the missing packages:\npip install {' '.join(missing)}",
            figures,
        )
    error = _try_torchvision()
    if error:
        return CheckResult(
            "problem",
            f"torchvision {versions['torchvision']} does not work with torch "
            f"{torch.__version__}: {error}",
            f"Install both together:\n{_reinstall_commands()}",
            figures,
        )
    shown = ", ".join(f"{name} {versions[name]}" for name in _SHOWN)
    return CheckResult(
        "ok",
        f"Python {figures['python']}, torch {torch.__version__}, {shown}; torchvision works with "
        "torch.",
        "",
        figures,
    )


def check_spawn(deadline_seconds: float = _DEADLINE_SECONDS) -> CheckResult:
    """Check that a child process starts and ends, by spawning one as ranks are spawned."""
    default = multiprocessing.get_all_start_methods()[0]
    figures: dict[str, object] = {"default_method": default}
    start = time.perf_counter()
    failure = _spawn_child(deadline_seconds)
    seconds = time.perf_counter() - start
    if not failure:
        return CheckResult(
            "ok",
            f"A child process starts and ends in {seconds:.2f} s (by spawn; the default here "
            f"is {default}).",
            figures=figures | {"seconds": seconds},
        )
    return CheckResult(
        "problem",
        f"A child process {failure}: data workers and ranks would not start either.",
        "Check that Python itself starts, and whether the number of processes is limited "
        "(ulimit -u).\npython -c 'import onsight; print(onsight.__file__)'",
        figures,
    )


def check_ranks() -> CheckResult:
    """Check what several ranks on this machine need: gloo, loopback, and NCCL if it has GPUs."""
    has_gloo = dist.is_available() and dist.is_gloo_available()
    has_nccl = dist.is_available() and dist.is_nccl_available()
    gpus = torch.cuda.device_count()
    has_loopback = _can_connect_over_loopback()
    figures = {"gloo": has_gloo, "nccl": has_nccl, "gpus": gpus, "loopback": has_loopback}
    if not has_gloo or not has_loopback:
        problem = (
            "The loopback interface is down or missing"
            if has_gloo
            else "gloo, torch's backend for CPU ranks, is missing"
        )
        return CheckResult(
            "warning",
            f"{problem}: training with one process works, --ranks 2 or more does not.",
            "Bring the interface up:\nsudo ip link set lo up"
            if has_gloo
            else "Install torch from https://pytorch.org/get-started/locally/",
            figures,
        )
    if gpus > 1 and not has_nccl:
        return CheckResult(
            "warning",
            f"There are {gpus} GPUs, but this torch lacks NCCL, which training on several needs.",
            "On Linux, install torch from https://pytorch.org/get-started/locally/",
            figures,
        )
    backends = "gloo and NCCL are" if has_nccl else "gloo is"
    return CheckResult(
        "ok",
        f"Several processes can train together (--ranks): {backends} available.",
        "",
        figures,
    )


def check_pretrained() -> CheckResult:
    """Report which ImageNet weights are installed for use offline."""
    models = offline_models()
    message = (
        f"ImageNet weights of {joined(models)} are installed, for use offline: "
        f"--model {models[0]} --pretrained."
    )
    hint = offline_hint()
    remedy = f"For use offline, {hint}." if hint else ""
    return CheckResult("note", message, remedy, {"models": models})


def _try_torchvision() -> str:
    """Call torchvision's compiled code; return the error, or "" if it works."""
    try:
        from torchvision.ops import nms

        boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 2.0]])
        indices = nms(boxes, torch.tensor([0.5, 1.0]), 0.5)
    except Exception as error:  # a build for another torch may raise anything
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return "" if indices.tolist() == [1] else "its code computes wrong results."


def _reinstall_commands() -> str:
    """Return the commands that reinstall torch and torchvision for the same build, e.g. cu132."""
    build = torch.__version__.partition("+")[2]
    if build == "cpu" or build.startswith(("cu", "rocm", "xpu")):
        return install_commands(build)
    return "pip install --upgrade torch torchvision"


def _spawn_child(deadline_seconds: float) -> str:
    """Return what went wrong, to follow "A child process" in a sentence; empty if nothing did."""
    try:
        done = subprocess.run(
            child_command(_CHILD_MODULE),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {deadline_seconds:g} s"
    except OSError as error:  # such as at the limit on processes
        return f"could not be started: {error.strerror or error}"
    return f"ended with exit code {done.returncode}" if done.returncode else ""


def _can_connect_over_loopback() -> bool:
    """Return whether a connection to 127.0.0.1 works: an interface may exist but be down."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), _LOOPBACK_DEADLINE_SECONDS),
        ):
            return True
    except OSError:
        return False
