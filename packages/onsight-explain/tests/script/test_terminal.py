"""What a script finds at its standard input: a terminal of a size, whose reading ends at once."""

import os
import subprocess
import sys

import pytest

from onsight_explain.process import terminal
from onsight_explain.process.terminal import unattended_terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no such terminals")
ASKED = """
import getpass, os, select, sys
def opens(path):
    try:
        open(path).close()
    except OSError:
        return False
    return True
print(sys.stdin.isatty(), *os.get_terminal_size(0))
print(select.select([sys.stdin], [], [], 0)[0])
for ask in (input, getpass.getpass):
    try:
        ask()
    except EOFError:
        print("the end")
print(repr(sys.stdin.read()), list(sys.stdin), os.read(0, 1))
print(opens("/dev/tty"))
"""


def said_by(*command):
    with unattended_terminal() as given:
        done = subprocess.run(
            command,
            stdin=given,
            capture_output=True,
            text=True,
            timeout=60,
            start_new_session=True,
            check=True,
        )
    return done.stdout.splitlines()


def test_stty_tells_the_users_size(monkeypatch):
    monkeypatch.setenv("COLUMNS", "123")
    monkeypatch.setenv("LINES", "45")
    assert said_by("stty", "size") == ["45 123"]


def test_every_way_to_read_it_ends_at_once_and_no_key_is_pressed(monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("LINES", "30")
    assert said_by(sys.executable, "-c", ASKED) == [
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

    monkeypatch.setattr(terminal.os, "openpty", none_left)
    with unattended_terminal() as given:
        assert os.read(given, 1) == b""
        assert not os.isatty(given)


def test_nothing_stays_open():
    def opened():
        return sorted(os.listdir("/dev/fd"))

    before = opened()
    with unattended_terminal():
        assert len(opened()) == len(before) + 2
    assert opened() == before
