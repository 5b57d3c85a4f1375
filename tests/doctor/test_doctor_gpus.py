"""GPUs: planted faults between the driver, its tools and torch must be named and fixed."""

import os
import subprocess
import warnings

import pytest
import torch

from onsight.doctor import gpus, nvidia
from onsight.doctor.nvidia import find_build, install_commands, is_unsupported

pytestmark = pytest.mark.usefixtures("published")

INSTALL = "pip install torch torchvision --index-url https://download.pytorch.org/whl/"


def plant_proc(tmp_path, models=("NVIDIA T4",), version="580.65.06"):
    """The files of a loaded NVIDIA driver."""
    folder = tmp_path / "proc-driver-nvidia"
    for number, model in enumerate(models):
        (folder / "gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
        text = f"Model: \t\t {model}\nIRQ:   \t\t 31\nGPU UUID: \t GPU-1234\n"
        (folder / "gpus" / f"0000:0{number}:00.0" / "information").write_text(text)
    folder.mkdir(exist_ok=True)
    line = (
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Sun Jul 27 07:19:17 UTC 2025"
    )
    (folder / "version").write_text(f"{line}\nGCC version:  gcc version 12.3.0\n")


def plant_pci(tmp_path, *devices):
    """(vendor, class) of what is on the PCI bus."""
    for number, (vendor, kind) in enumerate(devices):
        (tmp_path / "pci" / str(number)).mkdir(parents=True)
        (tmp_path / "pci" / str(number) / "vendor").write_text(f"{vendor}\n")
        (tmp_path / "pci" / str(number) / "class").write_text(f"{kind}\n")


# --------------------------------------------------------- driver against torch


def test_a_cpu_only_torch_on_a_gpu_machine_is_a_problem_with_the_command_that_fixes_it(
    nvidia_smi, add_gpu, torch_sees
):
    add_gpu()
    torch_sees(0, cuda=None)
    line = gpus.check_gpus()
    assert line.status == "problem"
    assert "NVIDIA A100" in line.message
    assert "2.15.0+cpu" in line.message
    assert "CPU-only" in line.message
    assert line.remedy.splitlines() == [
        "Install a torch built for this driver:",
        "pip uninstall -y torch torchvision",
        f"{INSTALL}cu130",
    ]
    assert line.figures["driver"] == "580.65.06"
    assert line.figures["driver_cuda"] == "13.0"
    assert line.figures["seen"] == []


def test_a_driver_is_found_by_its_files_where_nvidia_smi_is_missing(
    nvidia_smi, torch_sees, tmp_path
):
    nvidia_smi.is_installed = False
    plant_proc(tmp_path, ["NVIDIA T4", "NVIDIA T4"])
    torch_sees(0, cuda=None)
    line = gpus.check_gpus()
    assert line.status == "problem"
    assert "2 GPUs (2 NVIDIA T4)" in line.message
    assert "580.65.06" in line.figures["driver"]
    assert f"{INSTALL}cu130" in line.remedy


def test_a_driver_too_old_for_torch(nvidia_smi, add_gpu, torch_sees):
    nvidia_smi.banner = "Driver Version: 535.1   CUDA Version: 12.2"
    add_gpu(driver_version="535.183.01")
    torch_sees(0, cuda="13.0")
    line = gpus.check_gpus()
    assert line.status == "problem"
    assert "535.183.01" in line.message
    assert "CUDA up to 12.2" in line.message
    assert "CUDA 13.0" in line.message
    assert f"{INSTALL}cu126" in line.remedy
    assert "newer driver" in line.remedy


def test_an_old_driver_does_not_matter_if_torch_works_with_it(nvidia_smi, add_gpu, torch_sees):
    nvidia_smi.banner = "CUDA Version: 12.2"
    add_gpu()
    torch_sees(1, cuda="13.0")
    assert gpus.check_gpus().status == "ok"


def test_a_driver_too_old_for_any_build(nvidia_smi, add_gpu, torch_sees):
    nvidia_smi.banner = "CUDA Version: 11.4"
    add_gpu()
    torch_sees(0, cuda=None)
    line = gpus.check_gpus()
    assert line.status == "problem"
    assert "newest NVIDIA driver" in line.remedy
    assert "pip install" not in line.remedy


def test_the_banner_of_new_drivers_is_read(nvidia_smi, add_gpu, torch_sees):
    nvidia_smi.banner = "| NVIDIA-SMI 610.43.02   KMD Version: 610.43.02   CUDA UMD Version: 13.3 |"
    add_gpu()
    torch_sees(0, cuda=None)
    line = gpus.check_gpus()
    assert line.figures["driver_cuda"] == "13.3"
    assert f"{INSTALL}cu132" in line.remedy


def test_a_driver_that_does_not_know_compute_capabilities(nvidia_smi, add_gpu, torch_sees):
    nvidia_smi.banner = "CUDA Version: 11.2"
    add_gpu(driver_version="460.91.03")
    del nvidia_smi.gpus[0]["compute_cap"]
    torch_sees(0, cuda="13.0")
    line = gpus.check_gpus()
    assert line.status == "problem"
    assert "460.91.03 supports CUDA up to 11.2" in line.message


def test_hidden_gpus(nvidia_smi, add_gpu, torch_sees, monkeypatch):
    add_gpu()
    add_gpu()
    torch_sees(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    line = gpus.check_gpus()
    assert line.status == "note"
    assert "CUDA_VISIBLE_DEVICES='1' hides 1 of 2 GPUs" in line.message
    torch_sees(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    line = gpus.check_gpus()
    assert line.status == "warning"
    assert "hides 2 of 2 GPUs" in line.message
    assert line.remedy.endswith("\nunset CUDA_VISIBLE_DEVICES")


def test_a_gpu_that_torch_does_not_see(nvidia_smi, add_gpu, torch_sees, monkeypatch):
    add_gpu()
    torch_sees(0)

    def is_available():
        warnings.warn("CUDA initialization: CUDA unknown error\nmore", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    line = gpus.check_gpus()
    assert line.status == "problem"
    assert (
        "torch finds none. Torch's warning: CUDA initialization: CUDA unknown error" in line.message
    )


def test_a_container_without_its_gpus(nvidia_smi, torch_sees, tmp_path):
    nvidia_smi.is_installed = False
    plant_proc(tmp_path)
    line = gpus.check_gpus()
    assert line.status == "problem"
    assert "docker run --gpus all" in line.remedy
    (tmp_path / "nvidiactl").write_text("")  # it is reachable: something else is wrong
    assert "docker" not in gpus.check_gpus().remedy


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", "was updated"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "repair"),
    ],
)
def test_a_driver_that_does_not_answer(nvidia_smi, torch_sees, tmp_path, said, remedy):
    nvidia_smi.failure = (9, f"\n{said}\nmore words\n")
    line = gpus.check_gpus()
    assert line.status == "note"  # an image with NVIDIA's tools on a machine without a GPU
    assert said in line.message
    plant_pci(tmp_path, ("0x10de", "0x030200"))
    line = gpus.check_gpus()
    assert line.status == "problem"
    assert line.message.endswith(said)
    assert remedy in line.remedy


def test_nvidia_smi_that_hangs(nvidia_smi, torch_sees, tmp_path, monkeypatch):
    plant_pci(tmp_path, ("0x10de", "0x030000"))

    def hang(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(nvidia.subprocess, "run", hang)
    line = gpus.check_gpus()
    assert line.status == "problem"
    assert "no answer within 20 s" in line.message


def test_a_gpu_that_torch_has_no_code_for(nvidia_smi, add_gpu, torch_sees):
    add_gpu(name="NVIDIA TITAN X", compute_cap="[N/A]")
    torch_sees(1, arch_list=("sm_75", "sm_80", "sm_120", "compute_120"), capability=(6, 1))
    line = gpus.check_gpus()
    assert line.status == "problem"
    assert "6.1" in line.message
    assert f"{INSTALL}cu126" in line.remedy


def test_a_gpu_whose_name_contains_a_comma(nvidia_smi, add_gpu, torch_sees):
    add_gpu(name='"Tesla, T4"')
    torch_sees(1)
    assert "Tesla, T4" in gpus.check_gpus().message


MIG = {"mig.mode.current": "Enabled"}


@pytest.mark.parametrize("visible", [None, "MIG-5c8a"])
def test_gpus_in_mig_mode_give_a_program_one_slice(
    nvidia_smi, add_gpu, torch_sees, monkeypatch, visible
):
    add_gpu(**MIG)
    add_gpu(**MIG)
    torch_sees(1)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    line = gpus.check_gpus()
    assert line.status == "note"
    assert "2 of 2 GPUs (2 NVIDIA A100) are cut into slices (MIG mode)" in line.message
    assert "one slice" in line.message
    assert "CUDA_VISIBLE_DEVICES=MIG-... onsight train ..." in line.remedy


def test_mig_mode_without_a_slice_or_off(nvidia_smi, add_gpu, torch_sees, monkeypatch):
    add_gpu(**MIG)
    torch_sees(0)
    line = gpus.check_gpus()
    assert line.status == "problem"
    assert "no slice" in line.message
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "hides 1 of 1 GPU" in gpus.check_gpus().message
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    nvidia_smi.gpus[0]["mig.mode.current"] = "Disabled"
    torch_sees(1)
    assert gpus.check_gpus().status == "ok"


def test_all_is_well(nvidia_smi, add_gpu, torch_sees):
    add_gpu()
    add_gpu()
    torch_sees(2)
    line = gpus.check_gpus()
    assert line.status == "ok"
    for words in ("2 GPUs (2 NVIDIA A100)", "580.65.06", "up to 13.0", "CUDA 13.0", "cuDNN 9.10.2"):
        assert words in line.message


def test_no_gpu_is_a_note(nvidia_smi, torch_sees):
    nvidia_smi.is_installed = False
    line = gpus.check_gpus()
    assert line.status == "note"
    assert "CPU" in line.message
    assert not line.remedy


def test_a_gpu_without_a_driver(nvidia_smi, torch_sees, tmp_path):
    nvidia_smi.is_installed = False
    plant_pci(
        tmp_path, ("0x10de", "0x040300"), ("0x8086", "0x030000")
    )  # a sound device; another vendor's GPU
    assert gpus.check_gpus().status == "note"
    (tmp_path / "pci" / "0" / "class").write_text("0x030000\n")
    line = gpus.check_gpus()
    assert line.status == "warning"
    assert "1 NVIDIA GPU, but no NVIDIA driver" in line.message
    assert "install the driver" in line.remedy


def test_an_apple_gpu_needs_no_driver(nvidia_smi, torch_sees, monkeypatch):
    nvidia_smi.is_installed = False
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    line = gpus.check_gpus()
    assert line.status == "ok"
    assert "mps" in line.message


# ---------------------------------------------------------------------- wheels


@pytest.mark.parametrize(
    ("cuda", "capabilities", "expected"),
    [
        ((13, 2), [(8, 0)], "cu132"),
        ((13, 1), [(8, 0)], "cu130"),
        ((14, 0), [(9, 0)], "cu132"),
        ((12, 8), [(8, 9)], "cu126"),
        ((12, 4), [(8, 6)], "cu126"),  # by minor version compatibility
        ((13, 2), [(6, 1)], "cu126"),
        ((13, 2), [(8, 0), (7, 0)], "cu126"),
        ((13, 0), [(12, 1)], "cu130"),
        ((12, 8), [(12, 0)], None),
        ((11, 8), [(8, 0)], None),
        ((13, 0), [], "cu130"),
        ((13, 2), [(5, 0), (12, 0)], None),
    ],
)
def test_the_wheel_for_a_driver_and_its_gpus(cuda, capabilities, expected):
    assert find_build(cuda, capabilities) == expected


def test_a_release_that_does_not_list_its_builds(monkeypatch):
    monkeypatch.delattr(torch.cuda, "PYTORCH_RELEASES_CODE_CC", raising=False)
    assert find_build((13, 2), [(8, 0)]) == "cu130"
    older = {"12.6": {80, 90}, "12.8": {90, 120}}  # not by processor
    monkeypatch.setattr(torch.cuda, "PYTORCH_RELEASES_CODE_CC", older, raising=False)
    assert find_build((12, 8), [(12, 0)]) == "cu128"
    assert find_build((12, 4), [(9, 0)]) == "cu126"  # the nearest that such a driver may support


@pytest.mark.parametrize(
    ("arch_list", "capability", "expected"),
    [
        (["sm_80"], (8, 0), False),
        (["sm_80"], (8, 9), False),
        (["sm_86"], (8, 0), True),
        (["sm_80"], (9, 0), True),
        (["sm_80", "compute_80"], (12, 0), False),
        (["sm_90a", "sm_100f"], (10, 3), False),
        (["sm_75", "compute_120"], (7, 0), True),
    ],
)
def test_code_runs_on_gpus_of_its_generation_and_portable_code_on_newer_ones(
    arch_list, capability, expected
):
    assert is_unsupported(arch_list, capability) is expected


def test_only_torch_is_replaced():
    assert "force" not in install_commands("cu130")


# ---------------------------------------------------------------------- memory


def test_memory_of_gpus_and_what_uses_it(nvidia_smi, add_gpu, torch_sees):
    add_gpu()
    assert gpus.check_gpu_memory().status == "ok"
    add_gpu(**{"memory.used": "80000"})
    nvidia_smi.apps = [
        {"pid": "71", "process_name": "/usr/bin/python3", "used_memory": "20480"},
        {"pid": "72", "process_name": "jupyter", "used_memory": "[N/A]"},
        {"pid": "73", "process_name": "trainer", "used_memory": "51200"},
        {"pid": str(os.getpid()), "process_name": "onsight", "used_memory": "999"},
    ]
    line = gpus.check_gpu_memory()
    assert line.status == "warning"
    assert "GPU 0 (NVIDIA A100): 79.0 GiB of 80.0 GiB free" in line.message
    assert "GPU 1 (NVIDIA A100): 1.9 GiB of 80.0 GiB free" in line.message
    trainer, python = "trainer (process 73) uses 50.0 GiB", "python3 (process 71) uses 20.0 GiB"
    assert line.message.index(trainer) < line.message.index(python)
    assert line.figures["gpus"][1]["free_bytes"] == 1920 << 20
    assert [one["pid"] for one in line.figures["processes"]] == [73, 71, 72]


def test_memory_unknown_to_nvidia_smi_comes_from_torch(
    nvidia_smi, add_gpu, torch_sees, monkeypatch
):
    add_gpu(**{"memory.total": "[N/A]", "memory.used": "[N/A]"})
    assert gpus.check_gpu_memory() is None
    torch_sees(1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 30, 4 << 30))
    line = gpus.check_gpu_memory()
    assert line.status == "ok"
    assert "cuda:0: 3.0 GiB of 4.0 GiB free" in line.message


def test_without_gpus_there_is_no_line_on_their_memory(nvidia_smi, torch_sees):
    nvidia_smi.is_installed = False
    assert gpus.check_gpu_memory() is None
