"""Memory for decoding. Oracles: the kernel's count of this process's pages, and a count by hand."""

import io
import json
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image

import onsight
from onsight.data import decoding_memory
from onsight.data.decode import decode
from onsight.data.decoding_memory import MEMORY, DecodingMemory, MemoryBusy, NeedsMemory
from onsight.errors import ConfigError, DataError
from onsight.report.console import SilentReporter

# Prints the peak of each image's decoding and what was reserved for it.
MEASURE = """
import io, json, struct, zlib
import numpy as np, torch
from PIL import Image
from onsight.data.decode import prepare_image
from onsight.data.decoding_memory import MEMORY
from onsight.data.fit import ImageFormat

SIDE = 2000
turned = Image.Exif()
turned[0x0112] = 6

def encoded(mode, form, **options):
    light = np.add.outer(np.arange(SIDE), np.arange(SIDE)).astype(np.uint8)
    data = io.BytesIO()
    Image.fromarray(light).convert("RGB").convert(mode).save(data, form, **options)
    return data.getvalue()

def deep():
    chunk = lambda name, body: (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    )
    rows = zlib.compress((bytes(1) + bytes(8 * SIDE)) * SIDE, 1)
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 16, 6, 0, 0, 0)
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return bytes.fromhex("89504e470d0a1a0a") + chunks

def pages(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

images = {
    "jpeg": encoded("RGB", "JPEG", subsampling=0),
    "progressive jpeg": encoded("RGB", "JPEG", subsampling=0, progressive=True),
    "turned jpeg": encoded("RGB", "JPEG", exif=turned),
    "cmyk jpeg": encoded("CMYK", "JPEG"),
    "grey png": encoded("L", "PNG"),
    "palette png": encoded("P", "PNG"),
    "colour png": encoded("RGB", "PNG"),
    "transparent png": encoded("RGBA", "PNG"),
    "deep png": deep(),
    "webp": encoded("RGBA", "WEBP"),
}
reserved = []
real_reserve = MEMORY.reserve
MEMORY.reserve = lambda needed: (reserved.append(needed), real_reserve(needed))
whole, small = ImageFormat(64, 64, 3, decoded_for=(SIDE, SIDE)), ImageFormat(64, 64, 3)
prepare_image(encoded("RGB", "PNG"), whole)  # loads what is loaded once
measured = {}
for name, data in [*images.items(), ("jpeg as thumbnail", images["jpeg"])]:
    reserved.clear()
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts again
    before = pages("VmRSS")
    prepare_image(data, small if name.endswith("thumbnail") else whole)
    measured[name] = [pages("VmHWM") - before, max(reserved)]
print(json.dumps(measured))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts pages by /proc")
def test_what_is_reserved_is_what_decoding_takes():
    done = subprocess.run(
        [sys.executable, "-c", MEASURE],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},  # freed at once
    )
    for name, (peak, reserved) in json.loads(done.stdout).items():
        assert peak < 1.1 * reserved + 2**20, name
        assert reserved < 4 * peak + 2**20, name


def test_an_image_waits_until_there_is_room():
    memory = DecodingMemory(100)
    entered, may_leave = threading.Event(), threading.Event()

    def occupy():
        with memory.held():
            memory.reserve(60)
            entered.set()
            may_leave.wait(20)

    thread = threading.Thread(target=occupy)
    thread.start()
    entered.wait(20)
    with memory.held(patience_seconds=0.01), memory.held():
        memory.reserve(40)
        with pytest.raises(MemoryBusy):
            memory.reserve(41)
        with pytest.raises(NeedsMemory, match="ONSIGHT_DECODE_GIGABYTES"):
            memory.reserve(101)
    with memory.held():
        threading.Timer(0.05, may_leave.set).start()
        memory.reserve(100)
        assert may_leave.is_set()
    thread.join(20)


def test_threads_never_use_more_together_and_all_finish():
    memory, lock, used, most = DecodingMemory(100), threading.Lock(), [0], [0]

    def decode_some(seed):
        chance = random.Random(seed)
        for _ in range(50):
            with memory.held():
                for size in (chance.randint(1, 60), chance.randint(61, 100)):  # a second decoder
                    memory.reserve(size)
                    with lock:
                        used[0] += size
                        most[0] = max(most[0], used[0])
                    time.sleep(0)
                    with lock:
                        used[0] -= size

    threads = [threading.Thread(target=decode_some, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert 60 < most[0] <= 100


def test_a_large_image_is_decoded_alone_and_not_kept_waiting_by_small_ones(monkeypatch):
    monkeypatch.delenv(decoding_memory.VARIABLE, raising=False)
    monkeypatch.setattr(decoding_memory, "free_host_bytes", lambda: 64 * 2**30)
    monkeypatch.setattr(decoding_memory, "usable_cores", lambda: 2)
    memory, order = DecodingMemory(), []
    assert memory.total_bytes == 16 * 2**30

    def decode_one(name, size):
        with memory.held():
            memory.reserve(size)
            order.append(name)

    def started(name, size):
        thread = threading.Thread(target=decode_one, args=(name, size))
        thread.start()
        while len(memory._line) < len(threads) + 1:
            time.sleep(0.001)
        return thread

    threads = []
    with memory.held():
        memory.reserve(2**20)
        for name, size in (("large", 2**30), ("small", 1)):
            threads.append(started(name, size))
        assert order == []
    for thread in threads:
        thread.join(20)
    assert order == ["large", "small"]


def test_all_is_free_again_after_a_failure():
    memory = DecodingMemory(100)

    @memory.held()
    def fail():
        memory.reserve(100)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    with memory.held(patience_seconds=0):
        memory.reserve(100)


def test_the_budget_is_a_quarter_of_what_is_free_or_what_the_user_says(monkeypatch):
    monkeypatch.delenv(decoding_memory.VARIABLE, raising=False)
    monkeypatch.setattr(decoding_memory, "free_host_bytes", lambda: 8 * 2**30)
    assert DecodingMemory().total_bytes == 2 * 2**30
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert DecodingMemory().total_bytes == 2**30
    monkeypatch.setenv(decoding_memory.VARIABLE, "0.5")
    assert DecodingMemory().total_bytes == 500_000_000
    for text in ("0", "-1", "nan", "inf", "much"):
        monkeypatch.setenv(decoding_memory.VARIABLE, text)
        monkeypatch.setattr(MEMORY, "_total_bytes", None)
        with pytest.raises(ConfigError, match="positive number"):
            decode(png(8))


def test_an_image_that_never_fits_ends_packing(tmp_path, monkeypatch):
    for name in ("a/1.png", "b/1.png", "b/large.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png(200 if "large" in name else 8))
    monkeypatch.setattr(MEMORY, "_total_bytes", 200_000)
    with pytest.raises(DataError, match=r"b/large.png: decoding it takes 0.3 MB of memory"):
        onsight.check(tmp_path, quick=True, reporter=SilentReporter())


def png(side):
    """A grey PNG."""
    data = io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint8)).save(data, "PNG")
    return data.getvalue()
