"""Decoders that are killed, and a machine with almost no shared memory."""

import ctypes
import io
import os
import signal
import subprocess
import threading

import numpy as np
import pytest
from PIL import Image
from tally import Tally, count
from trials import train

from onsight.data import tiff_process
from onsight.data.decode import decode
from onsight.data.pixels import decode_with_pillow
from onsight.training.verify_resume import compare_folders

_NEW_MOUNTS = 0x20000  # CLONE_NEWNS


def tiff(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "TIFF")
    return file.getvalue()


def kill_now(number):
    os.kill(number, signal.SIGKILL)


def kill_while_decoding(number):
    """Stop the process, so that it cannot respond, and kill it while it is waited for."""
    os.kill(number, signal.SIGSTOP)
    threading.Timer(0.02, kill_now, (number,)).start()


@pytest.mark.parametrize("kill", [kill_now, kill_while_decoding])
def test_a_decoder_that_is_killed_costs_no_image(kill, monkeypatch):
    """Each time, the process is replaced, and the image is decoded all the same."""
    tally = Tally(f"a decoder of TIFFs killed: {kill.__name__}")
    monkeypatch.setattr(tiff_process, "_idle", [])
    decode(tiff(0))
    for seed in range(count(20, 1)):
        (decoder,) = tiff_process._idle
        with tally.trial(f"{seed}"):
            kill(decoder._process.pid)
            expected = decode_with_pillow(tiff(seed), (255, 255, 255), 1_000_000)
            assert np.array_equal(decode(tiff(seed)), expected)
            assert decoder._process.returncode == -signal.SIGKILL
    tiff_process._end_idle()
    tally.end()


def fill_shared_memory():
    """Give this process its own /dev/shm, of one page, which is full."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS):
        os._exit(77)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", "/dev/shm"], check=True)
    with open("/dev/shm/full", "wb") as file:
        file.write(bytes(4096))


@pytest.mark.parametrize("residency", count(["memory", "map", "stream"], ["stream"]))
def test_shared_memory_is_not_needed(residency, undisturbed, shared_bars, tmp_path):
    words = ["--residency", residency]
    ended = train(shared_bars, tmp_path / "run", *words, prepare=fill_shared_memory)
    if ended.code == 77:
        pytest.skip("needs permission to mount")
    assert ended.code == 0, ended.output
    assert compare_folders(undisturbed, tmp_path / "run").differences == []
