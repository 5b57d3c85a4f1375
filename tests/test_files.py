import errno
import os
import random
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from onsight import tensorfile
from onsight.errors import DiskError, OutputError
from onsight.files import (
    check_output,
    digest_around,
    keep_previous,
    new_folder,
    read_cell,
    refuse_no_folder,
    remove_unfinished,
    safe_cell,
    write_atomically,
)
from onsight.tensorfile import DamagedFile, read_tensors, write_tensors


def write_small(path):
    tensors = {"a": torch.arange(12.0).view(3, 4), "b": torch.tensor([1, 2], dtype=torch.int64)}
    write_tensors(path, tensors, {"name": "é", "n": 3})
    return tensors


def same(tensors, others):
    return all(torch.equal(others[name], tensor) for name, tensor in tensors.items())


def test_tensors_and_facts_come_back(tmp_path):
    tensors = write_small(tmp_path / "x.safetensors")
    read, facts = read_tensors(tmp_path / "x.safetensors")
    assert facts == {"name": "é", "n": 3}
    assert same(tensors, read)


def test_tensors_come_in_the_order_of_their_names(tmp_path):
    names = [f"{number:02d}" for number in range(20)]
    write_tensors(tmp_path / "x", {name: torch.zeros(1) for name in names[::-1]}, {})
    assert list(read_tensors(tmp_path / "x")[0]) == names


def test_equal_tensors_and_facts_make_equal_files(tmp_path):
    contents = set()
    for _ in range(20):  # safetensors puts the metadata into one of two orders, at random
        write_small(tmp_path / "x")
        contents.add((tmp_path / "x").read_bytes())
    assert len(contents) == 1


def test_every_kind_of_damage_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    write_small(path)
    good = path.read_bytes()
    chance = random.Random(0)
    for trial in range(600):
        bad = bytearray(good)
        if trial % 3 == 0:
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        elif trial % 3 == 1:
            bad = bad[: chance.randrange(len(bad))]
        else:
            start = chance.randrange(len(bad))
            zeroed = bytes(min(16, len(bad) - start))
            if bad[start : start + 16] == zeroed:
                continue
            bad[start : start + 16] = zeroed
        path.write_bytes(bad)
        with pytest.raises(DamagedFile):
            read_tensors(path)


@pytest.mark.parametrize("content", [bytes(1000), b"", b"cut short"])
def test_what_was_read_stays_when_the_file_is_overwritten(tmp_path, content):
    path = tmp_path / "x.safetensors"
    tensors = write_small(path)
    read, _ = read_tensors(path)
    path.write_bytes(content)
    assert same(tensors, read)


def test_the_bytes_that_were_checked_are_those_that_are_used(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    tensors = write_small(path)
    good = path.read_bytes()

    def check_then_overwrite(data, place):
        found = digest_around(data, place)
        path.write_bytes(good[:-64] + bytes(64))
        return found

    monkeypatch.setattr(tensorfile, "digest_around", check_then_overwrite)
    read, _ = read_tensors(path)
    assert same(tensors, read)


def test_reading_takes_the_memory_of_two_copies_at_most(tmp_path):
    path, count = tmp_path / "x.safetensors", 1 << 20
    write_tensors(path, {"a": torch.zeros(count), "b": torch.zeros(count)}, {})
    size = path.stat().st_size
    tracemalloc.start()
    try:
        read, _ = read_tensors(path)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(read) == 2
    assert size * 0.99 < kept < size * 1.1
    assert peak < size * 2.1


def test_a_large_file_of_another_kind_is_refused_by_its_header(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a hole: it takes no room on the disk
    with pytest.raises(DamagedFile, match="not an Onsight file"):
        read_tensors(path)


def test_a_file_that_does_not_fit_into_memory_is_not_called_damaged(tmp_path, monkeypatch):
    def refuse(data):
        raise MemoryError

    write_small(tmp_path / "x.safetensors")
    monkeypatch.setattr(tensorfile, "load", refuse)
    with pytest.raises(DamagedFile, match="cannot read .*: it does not fit into memory"):
        read_tensors(tmp_path / "x.safetensors")


FORMULAS = [
    "=1+1",
    "+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "--1",
    "=a\nb",
    "-1;=2",
]
PLAIN = [
    "",
    "cat",
    "-1",
    "+1.5",
    "-1e-05",
    "=",
    "-",
    "@",
    "a=b",
    "'",
    "'quoted'",
    "'-1",
    "./a",
    "é",
]


@pytest.mark.parametrize("text", [*FORMULAS, *(f"'{text}" for text in FORMULAS), *PLAIN])
def test_no_cell_is_a_formula_and_every_text_comes_back(text):
    path = safe_cell("other_path", text)
    assert os.path.normpath(path) == os.path.normpath(text)
    assert not path.startswith(("=", "+", "-", "@", "\t", "\r"))
    cell = safe_cell("label", text)
    assert (cell == text) == (text in PLAIN)
    assert text in PLAIN or cell.startswith("'")
    assert [read_cell("path", path), read_cell("label", cell)] == [text, text]


def test_checking_a_path_leaves_nothing_behind(tmp_path):
    path = tmp_path / "new" / "file"
    check_output("--out", path)
    assert not list(path.parent.iterdir())
    write_atomically(path, b"former")
    check_output("--out", path)
    assert path.read_bytes() == b"former"
    for folder in (tmp_path, Path("")):
        with pytest.raises(OutputError, match="is a folder"):
            check_output("--out", folder)
    with pytest.raises(OutputError, match=f"{path} is a file, not a folder"):
        check_output("--out", path / "below" / "x.csv")
    with pytest.raises(DiskError, match="cannot write /proc/file"):
        check_output("--out", Path("/proc/file"))


def test_an_output_folder_must_be_one(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "lost").symlink_to("nowhere")
    (tmp_path / "link").symlink_to(".")
    for name, kind in (("file", "a file"), ("lost", "a broken link")):
        with pytest.raises(OutputError, match=f"{name} is {kind}; --out needs a folder"):
            refuse_no_folder(tmp_path / name)
    refuse_no_folder(tmp_path / "link")
    refuse_no_folder(tmp_path / "new")


def test_disk_full_leaves_the_former_file_and_no_partial_one(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"former")

    def refuse(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DiskError, match="no space left on the disk while writing .*file"):
        write_atomically(path, b"later")
    assert path.read_bytes() == b"former"
    assert os.listdir(tmp_path) == ["file"]


def test_file_is_synced_before_the_rename_and_its_folder_after(tmp_path, monkeypatch):
    calls = []
    real_fsync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), real_fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), real_replace(a, b))[1])
    write_atomically(tmp_path / "file", b"data")
    assert calls == ["fsync", "rename", "fsync"]


def test_a_new_folder_is_there_as_a_whole_or_not_at_all(tmp_path):
    def make(*names):
        with new_folder(tmp_path / "in" / "folder") as folder:
            for name in names:
                (folder / name).touch()
            assert not (tmp_path / "in" / "folder").exists()
            if not names:
                raise ValueError("nothing")

    with pytest.raises(ValueError, match="nothing"):
        make()
    assert os.listdir(tmp_path / "in") == []
    make("a", "b")
    assert os.listdir(tmp_path / "in") == ["folder"]
    assert sorted(os.listdir(tmp_path / "in" / "folder")) == ["a", "b"]


WRITER = """
import sys, itertools
from pathlib import Path
from onsight.files import write_atomically
for n in itertools.count():
    write_atomically(Path(sys.argv[1]), bytes([n % 256]) * 200_000)
    print(n, flush=True)
"""


def test_a_killed_writer_leaves_a_complete_file(tmp_path):
    path = Path(tmp_path / "file")
    for trial in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        ) as process:
            process.stdout.readline()
            time.sleep(0.01 * trial)
            process.kill()
        data = path.read_bytes()
        assert len(data) == 200_000
        assert len(set(data)) == 1


def test_only_what_was_left_half_written_is_removed(tmp_path):
    number = "0123456789abcdef"
    mine = [f"{place}.onsight-{number}.tmp" for place in ("", "checkpoints/", "folds/1/")]
    theirs = ["x.tmp", ".x.json.123.tmp", f".onsight-{number}.tmp.bak", f"x.onsight-{number}.tmp"]
    theirs += [".onsight-notes.tmp", f".onsight-{number[1:]}.tmp", "checkpoints/last"]
    for name in mine + theirs:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("here")
    others = [f".onsight-{number[::-1]}.tmp", f".onsight-{16 * '0'}.tmp"]
    (tmp_path / others[0]).mkdir()
    (tmp_path / others[1]).symlink_to(tmp_path / "x.tmp")
    (tmp_path / "folds" / "elsewhere").symlink_to(tmp_path)
    remove_unfinished(tmp_path)
    assert not any((tmp_path / name).exists() for name in mine)
    assert all((tmp_path / name).exists() for name in [*theirs, *others])


def test_a_former_file_stays_when_its_successor_is_written(tmp_path, monkeypatch):
    path, former = tmp_path / "last", tmp_path / "former"
    write_atomically(path, b"1")
    for number in (b"2", b"3"):
        keep_previous(path, former)
        before = path.read_bytes()
        write_atomically(path, number)
        assert (former.read_bytes(), path.read_bytes()) == (before, number)

    for _ in range(2):  # as after a kill between keeping the former one and writing the new one
        keep_previous(path, former)
        assert sorted(os.listdir(tmp_path)) == ["former", "last"]
    assert former.read_bytes() == b"3"

    def refuse(*paths):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    keep_previous(path, former)
    assert former.read_bytes() == b"3"
    assert sorted(os.listdir(tmp_path)) == ["former", "last"]
