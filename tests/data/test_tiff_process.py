"""A decoder of TIFFs that hangs or crashes costs one image, and leaves nothing running."""

import io
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from onsight.data import tiff_process
from onsight.data.decode import decode
from onsight.data.fit import ImageFormat
from onsight.data.index import Index, Problem, Row
from onsight.data.packing import PackJob, decode_all
from onsight.data.pixels import decode_with_pillow
from onsight.data.sources.source import Source
from onsight.data.tiff_process import TiffProcess
from onsight.errors import DataError, ImageError

WHITE, LIMIT = (255, 255, 255), 1_000_000
HANGS = (sys.executable, "-c", "import time; time.sleep(60)")
CRASHES = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
ANSWERS_TOO_MUCH = (
    sys.executable,
    "-c",
    "import sys\n"
    "from multiprocessing.connection import Connection\n"
    "with Connection(int(sys.argv[1])) as link:\n"
    "    link.recv_bytes(), link.recv_bytes(), link.send_bytes(b'[[9, 9, 3], null]')\n"
    "    link.send_bytes(bytes(4 * 1_000_000))\n",
)


def tiff(seed: int = 0, **how: str) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "TIFF", **how)
    return file.getvalue()


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_deflate", "jpeg"])
def test_the_pixels_are_those_of_the_same_process(compression: str) -> None:
    data = tiff(compression=compression)
    np.testing.assert_array_equal(decode(data), decode_with_pillow(data, WHITE, LIMIT))


def test_the_reason_is_that_of_the_same_process() -> None:
    data = tiff()[:500]
    with pytest.raises(ImageError) as here:
        decode_with_pillow(data, WHITE, LIMIT)
    with pytest.raises(ImageError, match="^broken") as apart:
        decode(data)
    assert str(apart.value) == str(here.value)


def test_a_tile_far_larger_than_its_image_is_refused() -> None:
    side, image = 2**14, Image.new("L", (16, 16))
    packer = zlib.compressobj(1)
    tile = b"".join(packer.compress(bytes(2**24)) for _ in range(side**2 // 2**24)) + packer.flush()
    entries = [(256, 16), (257, 16), (258, 8), (259, 8), (262, 1), (277, 1), (322, side)]
    entries += [(323, side), (324, 8), (325, len(tile))]
    rows = [struct.pack("<HHLL", tag, 4, 1, value) for tag, value in entries]
    directory = struct.pack("<H", len(rows)) + b"".join(rows) + bytes(4)
    with pytest.raises(ImageError):
        decode(struct.pack("<2sHL", b"II", 42, 8 + len(tile)) + tile + directory)
    file = io.BytesIO()
    image.save(file, "TIFF")
    assert decode(file.getvalue()).shape == (16, 16, 1)


def test_one_process_serves_one_image_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiff_process, "_idle", [])
    started = []
    monkeypatch.setattr(
        tiff_process, "TiffProcess", lambda: started.append(TiffProcess()) or started[-1]
    )
    decode(tiff(1))
    with pytest.raises(ImageError):
        decode(tiff(2)[:300])
    decode(tiff(3))
    assert len(started) == 1
    started[0].end()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (HANGS, "its decoder gave no answer within 0.2 s"),
        (CRASHES, "its decoder crashed"),
        (ANSWERS_TOO_MUCH, "its decoder crashed"),
    ],
)
def test_a_fault_of_the_decoder_is_the_images_reason(command: tuple[str, ...], reason: str) -> None:
    seconds = 0.2 if command is HANGS else 30.0
    process = TiffProcess(command, seconds)
    with pytest.raises(ImageError, match=reason):
        process.decode(tiff(), WHITE, LIMIT)
    assert not process.is_running


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Lets the next processes crash, so many of them."""
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(tiff_process, "_idle", [])
    monkeypatch.setattr(
        tiff_process, "TiffProcess", lambda: TiffProcess(*[commands.pop()] if commands else [])
    )
    yield lambda count: commands.extend([CRASHES] * count)
    tiff_process._end_idle()


def test_after_a_crash_the_next_image_gets_a_new_process(crash: Callable[[int], None]) -> None:
    crash(2)
    with pytest.raises(ImageError, match="its decoder crashed"):
        decode(tiff())
    assert decode(tiff()).shape == (20, 30, 3)


def test_ctrl_c_in_the_terminal_does_not_reach_the_decoder() -> None:
    process = TiffProcess()
    process.decode(tiff(), WHITE, LIMIT)
    assert process._process.pid == os.getpgid(process._process.pid)
    process.end()


def test_a_process_that_cannot_be_started_is_said() -> None:
    with pytest.raises(DataError, match="cannot start a process to decode TIFFs"):
        TiffProcess(("/nowhere/python",))


def test_nothing_is_left_running_when_its_user_is_killed(tmp_path: Path) -> None:
    (tmp_path / "one.tif").write_bytes(tiff())
    program = (
        "import sys, time\n"
        "from onsight.data import tiff_process\n"
        "from onsight.data.decode import decode\n"
        "decode(open(sys.argv[1], 'rb').read())\n"
        "print(tiff_process._idle[0]._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "one.tif")], stdout=subprocess.PIPE
    )
    assert user.stdout
    decoder = int(user.stdout.readline())
    user.send_signal(signal.SIGKILL)
    user.wait()
    user.stdout.close()
    deadline = time.monotonic() + 30
    while _runs(decoder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(decoder)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_source_with_such_a_image_is_decoded_but_for_it(crash: Callable[[int], None]) -> None:
    crash(2)
    contents = [tiff(seed) for seed in range(3)]
    index = Index.of([Row(name, "one") for name in ("a.tif", "b.tif", "c.tif")])
    source = Source("test", Path("/data"), index, contents.__getitem__, "three", "a test")
    decoded = decode_all(io.BytesIO(), PackJob(source, ImageFormat(20, 30, 3)))
    assert decoded.source_rows == [1, 2]
    assert decoded.problems == [Problem("a.tif", "decode", "its decoder crashed")]
