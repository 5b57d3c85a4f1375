"""The system calls of a save: write, fsync of the file, rename, fsync of its folder."""

import os
import re
import shutil
import stat
import subprocess
import sys

import pytest

SAVE = """
import os, sys
from pathlib import Path
from onsight.files import write_atomically
path = Path(sys.argv[1])
write_atomically(path, b"former" * 100)
os.umask(0o027)
write_atomically(path, b"later" * 100_000)
"""
CALLS = "openat,write,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,close"


def trace(path, log):
    """Return the calls that name the file's folder or use its descriptor, traced by strace."""
    command = ["strace", "-y", "-o", str(log), "-e", f"trace={CALLS}"]
    command += [sys.executable, "-c", SAVE, str(path)]
    subprocess.run(command, check=True, capture_output=True)
    lines = [line for line in log.read_text().splitlines() if str(path.parent) in line]
    return [(line.partition("(")[0], line) for line in lines]


def second_save(calls):
    """Return the calls of the second save: those after the folder was closed by the first."""
    places = [number for number, (name, _) in enumerate(calls) if name == "close"]
    return calls[places[1] + 1 :]


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace; see the test below")
def test_a_save_is_durable_before_it_counts(tmp_path):
    path = tmp_path / "watched" / "last.safetensors"
    path.parent.mkdir()
    calls = second_save(trace(path, tmp_path / "log"))
    names = [name for name, _ in calls]
    order = ["openat", "write", "fsync", "rename", "openat", "fsync", "close", "close"]
    assert re.sub(r"(write )+", "write ", " ".join(names)) == " ".join(order)
    written = [line for name, line in calls if name in ("write", "fsync", "rename")]
    temporary = re.search(r"<([^>]*)>", written[0])[1]
    assert os.path.dirname(temporary) == str(path.parent)
    assert temporary in written[-3]  # the file is synced, then renamed, then its folder synced
    assert f'"{temporary}", "{path}"' in written[-2]
    assert f"<{path.parent}>" in written[-1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


AUDITED = """
import sys
notes = []
def hook(event, args):
    if event in ("open", "os.rename", "os.remove") and sys.argv[1] in str(args[0]):
        notes.append(event)
sys.addaudithook(hook)
import os
real = os.fsync
def fsync(descriptor):
    notes.append("fsync")
    real(descriptor)
os.fsync = fsync
from pathlib import Path
from onsight.files import write_atomically
path = Path(sys.argv[1], "file")
path.write_bytes(b"former")
del notes[:]
write_atomically(path, b"later")
print(*notes)
"""


def test_the_same_order_by_pythons_audit_events(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["open", "fsync", "os.rename", "open", "fsync"]
