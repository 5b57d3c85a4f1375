"""A disk that is full, has no inodes left or cannot be written to, at moments of a run."""

import errno
import functools
import os
import random
import subprocess
from contextlib import contextmanager

import pytest
from tally import Tally, count
from trials import leftovers, resume, train

from onsight.tensorfile import read_tensors
from onsight.training.verify_resume import compare_folders

ERRORS = {"ENOSPC": "no space left", "EDQUOT": "no space left", "EROFS": "cannot write"}


def fail_at(number, code):
    """From the given call on, nothing more can be written through onsight.files."""
    calls = 0
    real = {name: getattr(os, name) for name in ("fsync", "replace")}

    def failing(name, *args):
        nonlocal calls
        calls += 1
        if calls >= number:
            raise OSError(code, os.strerror(code))
        return real[name](*args)

    for name in real:
        setattr(os, name, functools.partial(failing, name))


@pytest.mark.parametrize("name", count([*ERRORS], ["EDQUOT", "EROFS"]))
def test_nothing_can_be_written_any_more(name, undisturbed, shared_bars, tmp_path):
    tally, drawn = Tally(f"{name} from a moment on"), random.Random(name)
    for number in range(count(20, 1)):
        out, call = tmp_path / f"{number}", drawn.randrange(3, 90)
        prepare = functools.partial(fail_at, call, getattr(errno, name))
        with tally.trial(f"call {call}"):
            check_refused(train(shared_bars, out, prepare=prepare), out, ERRORS[name])
            check_goes_on(shared_bars, out, undisturbed)
    tally.end()


def check_refused(ended, out, words):
    """One message that names the file; what is there is whole, and nothing is half-written."""
    assert ended.code == 1, ended.said
    assert "Traceback" not in ended.said
    assert words in ended.said
    assert str(out) in ended.said
    assert leftovers(out) == []
    last = out / "checkpoints" / "last.safetensors"
    if last.exists():
        read_tensors(last)


def check_goes_on(bars, out, undisturbed):
    again = resume(bars, out)
    assert again.code == 0, again.said
    assert compare_folders(undisturbed, out).differences == []


@contextmanager
def small_disk(folder, options):
    """A file system in memory, so small that it fills; skips where it cannot be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount; the tests above plant the same errors")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


@pytest.mark.parametrize("what", count(["size", "nr_inodes"], ["size"]))
def test_a_small_disk_fills(what, undisturbed, shared_bars, tmp_path):
    tally = Tally(f"a small disk fills: {what}")
    sizes = range(4, 84, 4) if what == "size" else range(3, 23)
    few = (sizes[4],)
    for number in count(sizes, few):
        disk = tmp_path / f"disk-{number}"
        limits = f"{what}={number}{'k' if what == 'size' else ''}"
        with small_disk(disk, limits), tally.trial(limits):
            out = disk / "run"
            log = tmp_path / f"{number}"
            cache = ["--cache-folder", tmp_path / "cache"]
            ended = train_on(disk, shared_bars, log, cache)
            if ended.code:
                check_refused(ended, disk, "no space left")
            remount(disk, f"{what}=1000{'k' if what == 'size' else ''}")
            if ended.code:
                again = ["--resume"] if (out / "config.toml").exists() else []
                done = train_on(disk, shared_bars, log, [*cache, *again])
                assert done.code == 0, done.said
            assert compare_folders(undisturbed, out).differences == []
    tally.end()


def train_on(disk, bars, log, more):
    from trials import PLAIN, Trial

    words = ["train", bars, "--out", disk / "run", "--epochs", 3, *PLAIN.split(), *more]
    log.unlink(missing_ok=True)
    return Trial(words, log).end()


@pytest.mark.skipif(count(0, 1), reason="EROFS is raised in its place above in any case")
def test_a_disk_that_became_read_only_is_named(undisturbed, shared_bars, tmp_path):
    disk = tmp_path / "disk"
    with small_disk(disk, "size=1000k"):
        cache = ["--cache-folder", tmp_path / "cache"]
        assert train_on(disk, shared_bars, tmp_path / "log", cache).code == 0
        remount(disk, "ro")
        ended = train_on(disk, shared_bars, tmp_path / "log", [*cache, "--resume"])
        assert ended.code == 1, ended.said
        assert "cannot write" in ended.said
        assert str(disk) in ended.said
        assert compare_folders(undisturbed, disk / "run").differences == []
