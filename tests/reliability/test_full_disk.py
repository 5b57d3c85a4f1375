"""A disk that becomes full, runs out of inodes or becomes read-only during a run."""

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
    """From the given call on, every write through onsight.files fails."""
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
def test_every_write_fails_from_some_moment_on(name, undisturbed, shared_bars, tmp_path):
    tally, drawn = Tally(f"{name} from some moment on"), random.Random(name)
    for number in range(count(20, 1)):
        out, call = tmp_path / f"{number}", drawn.randrange(3, 90)
        prepare = functools.partial(fail_at, call, getattr(errno, name))
        with tally.trial(f"call {call}"):
            check_refused(train(shared_bars, out, prepare=prepare), out, ERRORS[name])
            check_resumes(shared_bars, out, undisturbed)
    tally.end()


def check_refused(ended, out, words):
    """One message names the file; existing files are complete, and nothing is half-written."""
    assert ended.code == 1, ended.output
    assert "Traceback" not in ended.output
    assert words in ended.output
    assert str(out) in ended.output
    assert leftovers(out) == []
    last = out / "checkpoints" / "last.safetensors"
    if last.exists():
        read_tensors(last)


def check_resumes(bars, out, undisturbed):
    again = resume(bars, out)
    assert again.code == 0, again.output
    assert compare_folders(undisturbed, out).differences == []


@contextmanager
def small_disk(folder, options):
    """A small file system in memory; skips the test if it cannot be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs permission to mount; the tests above plant the same errors")
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
    for number in count(sizes, (sizes[4],)):
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
                assert done.code == 0, done.output
            assert compare_folders(undisturbed, out).differences == []
    tally.end()


def train_on(disk, bars, log, more):
    from trials import PLAIN, Trial

    words = ["train", bars, "--out", disk / "run", "--epochs", 3, *PLAIN.split(), *more]
    log.unlink(missing_ok=True)
    return Trial(words, log).end()


@pytest.mark.skipif(count(0, 1), reason="the tests above always plant EROFS")
def test_a_disk_that_became_read_only_is_named(undisturbed, shared_bars, tmp_path):
    disk = tmp_path / "disk"
    with small_disk(disk, "size=1000k"):
        cache = ["--cache-folder", tmp_path / "cache"]
        assert train_on(disk, shared_bars, tmp_path / "log", cache).code == 0
        remount(disk, "ro")
        ended = train_on(disk, shared_bars, tmp_path / "log", [*cache, "--resume"])
        assert ended.code == 1, ended.output
        assert "cannot write" in ended.output
        assert str(disk) in ended.output
        assert compare_folders(undisturbed, disk / "run").differences == []
