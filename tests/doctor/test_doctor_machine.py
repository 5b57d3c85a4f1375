"""The machine's limits: faults planted in the kernel's files and the environment."""

import os
import resource
import shutil
import types

import pytest
import torch

from onsight.doctor import disk, examine, machine
from onsight_explain import threads as hardware_cores

GIB = 1 << 30

# ----------------------------------------------------------------------- cores


@pytest.fixture
def two_cores(monkeypatch, tmp_path):
    """Two cores, two threads of torch, no quota, no variables."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(hardware_cores, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_CPUS", tmp_path / "cpus")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_two_cores_and_two_threads(two_cores):
    line = machine.check_cores()
    assert line.status == "ok"
    assert line.message == "2 cores can be used; torch uses 2 threads."
    assert line.figures["cores"] == 2


def test_more_threads_asked_for_than_cores(two_cores, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    line = machine.check_cores()
    assert line.status == "warning"
    assert "OMP_NUM_THREADS=64" in line.message
    assert line.remedy.endswith("\nunset OMP_NUM_THREADS")
    monkeypatch.setenv("MKL_NUM_THREADS", "8")
    assert machine.check_cores().remedy.endswith("\nunset OMP_NUM_THREADS MKL_NUM_THREADS")


def test_a_quota_of_one_core_under_two_threads(two_cores):
    (two_cores / "cpu.max").write_text("100000 100000")
    line = machine.check_cores()
    assert line.status == "warning"
    assert "1 core can be used (the container's quota; the machine has 2)" in line.message
    assert "2 threads" in line.message
    assert line.remedy.endswith("\nexport OMP_NUM_THREADS=1")
    assert line.figures["cores"] == 1


def test_far_fewer_threads_asked_for_than_cores(two_cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    line = machine.check_cores()
    assert line.status == "note"
    assert "8 cores can be used (by affinity; the machine has 16)" in line.message
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert machine.check_cores().status == "ok"
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert machine.check_cores().status == "ok"


def test_hyperthreads_are_distinguished_from_cores(two_cores):
    for number in (0, 1):
        folder = two_cores / "cpus" / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text("0-1\n")
    line = machine.check_cores()
    assert "hyperthreads of 1 physical core" in line.message
    assert line.figures["physical_cores"] == 1


@pytest.mark.parametrize(("load", "state"), [(0.3, "ok"), (0.9, "ok"), (1.3, "warning")])
def test_load(two_cores, monkeypatch, load, state):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0))
    line = machine.check_load()
    assert line.status == state
    assert f"{load} threads were running or waiting on 2 cores" in line.message


# ---------------------------------------------------------------------- memory


@pytest.fixture
def ram(monkeypatch, tmp_path):
    """Set the free memory, of 16 GiB; processes are files in tmp_path."""
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    monkeypatch.setattr(machine, "_CGROUP_LIMITS", (tmp_path / "max", tmp_path / "limit_in_bytes"))
    monkeypatch.setattr(machine, "memory_bytes", lambda: 16 * GIB)

    def free(count):
        monkeypatch.setattr(machine, "free_memory_bytes", lambda device: count)

    return free


def test_memory_and_swap(ram, tmp_path):
    ram(9 * GIB)
    assert machine.check_memory().message == "9.0 GiB of 16.0 GiB free; no swap."
    (tmp_path / "meminfo").write_text("SwapTotal: 2097152 kB\nSwapFree: 1048576 kB\n")
    line = machine.check_memory()
    assert line.status == "ok"
    assert line.message == "9.0 GiB of 16.0 GiB free; 1.0 GiB of 2.0 GiB swap used."


@pytest.mark.parametrize("name", ["max", "limit_in_bytes"])
def test_a_containers_limit_counts_as_the_total(ram, tmp_path, name):
    ram(3 * GIB)
    (tmp_path / name).write_text(str(4 * GIB))
    assert "of 4.0 GiB (the container's limit) free" in machine.check_memory().message
    (tmp_path / name).write_text("9223372036854771712" if name != "max" else "max")
    assert "of 16.0 GiB free" in machine.check_memory().message


def test_scarce_memory_names_the_largest_processes(ram, tmp_path):
    page = os.sysconf("SC_PAGE_SIZE")
    for pid, name, size in ((7, "small", 1), (8, "browser", 3), (9, "notebook", 5), (10, "b", 2)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
        (tmp_path / str(pid) / "statm").write_text(f"999999999 {size * GIB // page} 5 1 0 7 0\n")
    (tmp_path / "11").mkdir()  # a process that has just ended
    ram(GIB)
    line = machine.check_memory()
    assert line.status == "warning"
    assert line.message.endswith(
        "notebook (process 9, 5.0 GiB), browser (process 8, 3.0 GiB), b (process 10, 2.0 GiB)."
    )
    ram(GIB // 4)
    assert machine.check_memory().status == "problem"


# ---------------------------------------------------------------------- limits


def usage(total, free):
    return lambda path: types.SimpleNamespace(total=total, used=total - free, free=free)


def test_tiny_shared_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", usage(64 << 20, 64 << 20))
    line = machine.check_shared_memory()
    assert line.status == "warning"
    assert "0.1 GiB of 0.1 GiB" in line.message
    assert "Onsight decodes in threads and does not need it" in line.message
    assert "--shm-size" in line.remedy
    monkeypatch.setattr(shutil, "disk_usage", usage(8 * GIB, 8 * GIB))
    assert machine.check_shared_memory().status == "ok"
    monkeypatch.setattr(shutil, "disk_usage", usage(8 * GIB, GIB // 2))
    assert machine.check_shared_memory().status == "warning"
    monkeypatch.setattr(machine, "_SHARED_MEMORY", tmp_path / "none")
    assert machine.check_shared_memory() is None


@pytest.mark.parametrize(
    ("soft", "hard", "state", "remedy"),
    [
        (256, 4096, "warning", "ulimit -n 4096"),
        (256, resource.RLIM_INFINITY, "warning", "ulimit -n 4096"),
        (256, 512, "warning", "ulimit -n 512"),
        (256, 256, "warning", "nofile"),
        (1024, 4096, "ok", ""),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, "ok", ""),
    ],
)
def test_open_files(monkeypatch, soft, hard, state, remedy):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    line = machine.check_open_files()
    assert line.status == state
    assert remedy in line.remedy
    if state == "warning":
        assert "only 256 files" in line.message


# ------------------------------------------------------------------------ disk


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The folder for the cache, not yet created."""
    monkeypatch.setenv("ONSIGHT_CACHE", str(tmp_path / "above" / "cache"))
    (tmp_path / "above").mkdir()
    return tmp_path / "above"


def test_a_disk_is_tested_and_left_unchanged(cache):
    line = disk.check_cache_disk(test_bytes=1 << 20, seconds=0.05)
    assert line.status in ("ok", "warning")  # depends on the disk
    assert line.figures["folder"] == str(cache / "cache")
    assert line.figures["write_bytes_per_second"] > 0
    assert line.figures["read_bytes_per_second"] > 0
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("written", "read", "state"), [(900e6, 2e9, "ok"), (9e6, 2e9, "warning"), (9e8, 9e6, "warning")]
)
def test_a_slow_disk(cache, monkeypatch, written, read, state):
    monkeypatch.setattr(shutil, "disk_usage", usage(10**12, 10**11))
    monkeypatch.setattr(disk, "_measure_speeds", lambda folder, tried, seconds: (written, read))
    line = disk.check_cache_disk()
    assert line.status == state
    assert "100.0 GB free; writes" in line.message
    assert ("ONSIGHT_CACHE" in line.remedy) == (state == "warning")


@pytest.mark.parametrize(
    ("free", "state"), [(0, "problem"), (9 * 10**8, "problem"), (3 * 10**9, "warning")]
)
def test_a_full_disk(cache, monkeypatch, tmp_path, free, state):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", usage(10**12, free))
    for line in (disk.check_cache_disk(1 << 16, 0.01), disk.check_output_disk()):
        assert line.status == state
        assert line.remedy
        assert line.figures["free_bytes"] == free


def test_a_disk_that_fills_up_during_the_test(cache, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    line = disk.check_cache_disk(1 << 16, 0.01)
    assert line.status == "problem"
    assert line.message.endswith("No space left on device.")
    assert list(cache.iterdir()) == []


def test_a_folder_that_is_not_writable(cache, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def refuse(**options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(disk.tempfile, "TemporaryFile", refuse)
    for line in (disk.check_cache_disk(), disk.check_output_disk()):
        assert line.status == "problem"
        assert "Read-only file system" in line.message
    assert "ONSIGHT_CACHE" in disk.check_cache_disk().remedy
    assert "--out" in disk.check_output_disk().remedy


def test_a_file_where_the_cache_should_be(cache):
    (cache / "cache").write_text("mine")
    result = examine._run(disk.check_cache_disk)
    assert result.status == "problem"
    assert f"{cache / 'cache'} is a file; choose another" in result.message


def test_the_caches_size(cache):
    assert "is empty" in disk.check_cache().message
    (cache / "cache" / "pack").mkdir(parents=True)
    (cache / "cache" / "pack" / "pixels").write_bytes(bytes(3_000_000))
    (cache / "cache" / "plan").write_bytes(bytes(200_000))
    (cache / "cache" / "loop").symlink_to(cache, target_is_directory=True)
    line = disk.check_cache()
    assert line.status == "note"
    assert "holds 3.2 MB in 2 files" in line.message
    assert line.figures["bytes"] == 3_200_000
    assert "at least" in disk.check_cache(seconds=0.0).message
