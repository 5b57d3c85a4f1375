"""Our own processes: their output, channel, terminal and time limit, and that nothing remains."""

import os
import signal
import subprocess
import sys
import time

import pytest

from onsight_explain.process import supervised
from onsight_explain.process.supervised import (
    Channel,
    Closed,
    SupervisedChild,
    kill_marked,
    new_mark,
    unattended_terminal,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no such terminals")
ECHO = """
import os, sys
from onsight_explain.process.supervised import Channel
print(*sys.argv[1:-1], sys.stdin.isatty(), flush=True)
channel = Channel.inherited(int(sys.argv[-1]))
message, _ = channel.receive()
channel.send({"answer": message["question"].upper(), "word": os.environ["WORD"]})
raise SystemExit(7)
"""
DAEMON = """
import os, sys, time
if os.fork():
    print("started", flush=True)
    time.sleep(600)
os.setsid()
open("daemon.pid", "w").write(str(os.getpid()))
time.sleep(600)
"""
PROMPTS = """
import getpass, os, select, sys
def opens(path):
    try:
        open(path).close()
    except OSError:
        return False
    return True
print(sys.stdin.isatty(), *os.get_terminal_size(0))
print(select.select([sys.stdin], [], [], 0)[0])
for prompt in (input, getpass.getpass):
    try:
        prompt()
    except EOFError:
        print("the end")
print(repr(sys.stdin.read()), list(sys.stdin), os.read(0, 1))
print(opens("/dev/tty"))
"""


def output_of(*command):
    with unattended_terminal() as terminal:
        done = subprocess.run(
            command,
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=60,
            start_new_session=True,
            check=True,
        )
    return done.stdout.splitlines()


def test_stty_prints_the_size_of_the_users_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "123")
    monkeypatch.setenv("LINES", "45")
    assert output_of("stty", "size") == ["45 123"]


def test_every_way_to_read_it_ends_at_once_and_no_key_is_pressed(monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("LINES", "30")
    assert output_of(sys.executable, "-c", PROMPTS) == [
        "True 90 30",
        "[]",
        "the end",
        "the end",
        "'' [] b''",
        "False",
    ]


def test_without_terminals_the_input_is_empty(monkeypatch):
    def none_left():
        raise OSError("out of pty devices")

    monkeypatch.setattr(supervised.os, "openpty", none_left)
    with unattended_terminal() as terminal:
        assert os.read(terminal, 1) == b""
        assert not os.isatty(terminal)


def test_no_descriptor_of_a_terminal_stays_open():
    def opened():
        return sorted(os.listdir("/dev/fd"))

    before = opened()
    with unattended_terminal():
        assert len(opened()) == len(before) + 2
    assert opened() == before


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module of some code importable for children; returns its name."""

    def write(code):
        (tmp_path / "made_module.py").write_text(code)
        folders = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
        monkeypatch.chdir(tmp_path)
        return "made_module"

    return write


@pytest.mark.parametrize("has_terminal", [True, False])
def test_a_child_has_its_arguments_environment_input_and_channel(tmp_path, module, has_terminal):
    ours, theirs = Channel.pair()
    name, output = module(ECHO), tmp_path / "output"
    with SupervisedChild(
        name,
        ["a", "b"],
        output=output,
        environment=os.environ | {"WORD": "chosen"},
        channel=theirs,
        has_terminal=has_terminal,
    ) as child:
        ours.send({"question": "why"})
        assert ours.receive(60) == ({"answer": "WHY", "word": "chosen"}, [])
        assert child.wait(60) == 7
        with pytest.raises(Closed):
            ours.receive(60)
    ours.close()
    assert output.read_text() == f"a b {has_terminal}\n"
    assert child.kill() == 7


def test_a_child_is_killed_after_its_time_with_a_daemon_of_its_own(tmp_path, module):
    with SupervisedChild(module(DAEMON), output=tmp_path / "output") as child:
        assert child.wait(0.1) is None
        while not (tmp_path / "daemon.pid").exists() or not (tmp_path / "daemon.pid").read_text():
            time.sleep(0.02)
        daemon = int((tmp_path / "daemon.pid").read_text())
        os.kill(daemon, 0)
        assert child.kill() == -signal.SIGKILL
    assert not is_running(daemon)


@pytest.mark.skipif(sys.platform != "linux", reason="shows no environment of processes")
def test_children_with_a_shared_mark_are_killed_by_its_owner(tmp_path, module):
    mark = new_mark()
    child = SupervisedChild(module(DAEMON), output=tmp_path / "output", mark=mark)
    while not (tmp_path / "daemon.pid").exists() or not (tmp_path / "daemon.pid").read_text():
        time.sleep(0.02)
    daemon = int((tmp_path / "daemon.pid").read_text())
    child.kill()
    assert is_running(daemon)
    kill_marked(mark)
    assert not is_running(daemon)


def is_running(pid):
    """Whether a process still runs a moment after it may have been killed."""
    for _ in range(50):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return False
        except FileNotFoundError:
            return False
        time.sleep(0.01)
    return True
