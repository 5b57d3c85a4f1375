"""Copies of shards under a limit, shared by processes."""

import os
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

from onsight.data.cache import locked
from onsight.data.shards.cache import ShardCache
from onsight.errors import DiskError


def add(cache, key, size=10):
    return cache.add(key, size, lambda file: file.write(key[:1].encode() * size))


def kept(folder):
    return sorted(path.stem for path in folder.glob("*.shard"))


def test_the_least_recently_used_copy_is_removed(tmp_path):
    cache = ShardCache(tmp_path, 30)
    for age, key in enumerate(("a", "b", "c")):
        add(cache, key)
        os.utime(tmp_path / f"{key}.shard", (1000 + age, 1000 + age))
    open_a = cache.find("a")
    assert open_a.read(2, 3) == b"aaa"
    add(cache, "d")
    assert kept(tmp_path) == ["a", "c", "d"]
    open_c = cache.find("c")
    add(cache, "e", 25)
    assert kept(tmp_path) == ["e"]
    assert open_c.read(0, 10) == b"c" * 10  # what is open can be read to its end


def test_a_failed_copy_leaves_nothing_and_is_made_again(tmp_path):
    cache = ShardCache(tmp_path, 100)

    def fail(file):
        file.write(b"half")
        raise TimeoutError

    with pytest.raises(DiskError):
        cache.add("a", 10, fail)
    assert not [path for path in tmp_path.iterdir() if path.is_file()]
    assert add(cache, "a").read(0, 99) == b"a" * 10


def test_a_copy_gets_its_name_while_nobody_adds_up_the_sizes(tmp_path):
    cache, written = ShardCache(tmp_path, 100), threading.Event()
    adding_up = ExitStack()

    def write(file):
        file.write(b"a" * 10)
        adding_up.enter_context(locked(tmp_path / "locks" / "room"))
        written.set()

    thread = threading.Thread(target=lambda: cache.add("a", 10, write))
    thread.start()
    assert written.wait(10)
    thread.join(0.2)
    assert kept(tmp_path) == []  # otherwise a listing could miss it under both names
    adding_up.close()
    thread.join(10)
    assert kept(tmp_path) == ["a"]


def test_strays_of_killed_processes_are_removed_and_those_being_written_are_not(tmp_path):
    (tmp_path / "dead.1.tmp").write_bytes(b"x" * 90)
    cache, begun, go_on = ShardCache(tmp_path, 100), threading.Event(), threading.Event()

    def slowly(file):
        begun.set()
        go_on.wait()
        file.write(b"s" * 60)

    thread = threading.Thread(target=lambda: cache.add("slow", 60, slowly))
    thread.start()
    begun.wait()
    add(cache, "a", 30)
    assert not (tmp_path / "dead.1.tmp").exists()
    go_on.set()
    thread.join()
    assert kept(tmp_path) == ["a", "slow"]


def test_two_processes_copy_a_shard_once(tmp_path):
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from onsight.data.shards.cache import ShardCache\n"
        "def write(file):\n"
        "    print('wrote'); time.sleep(0.2); file.write(b'x' * 9)\n"
        "assert ShardCache(Path(sys.argv[1]), 99).add('k', 9, write).read(0, 9) == b'x' * 9\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    output = b"".join(process.communicate()[0] for process in started)
    assert [process.returncode for process in started] == [0, 0]
    assert output.count(b"wrote") == 1
