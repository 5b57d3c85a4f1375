"""Scripts that fail in every way: one clear message each, nothing left running, nothing changed."""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from onsight_explain.cli import main
from onsight_explain.diagnosis.explain import explain_script
from onsight_explain.errors import ExplainError, ScriptFailed
from onsight_explain.process.bench import ScriptBench
from onsight_explain.process.execution import execute
from onsight_explain.process.failure import describe_failure, describe_no_training
from onsight_explain.process.processes import Processes
from onsight_explain.script.trace import Trace

LIMIT_SECONDS = 4
DAEMON = """
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        time.sleep(600)
    os._exit(0)
os.wait()
raise RuntimeError("planted")
"""
BACKGROUND = """
import os, time
if os.fork():
    os._exit(0)
time.sleep(600)
"""
ARGUMENTS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.parse_args()
"""
SIGNALS = """
import signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
    signal.signal(number, lambda *_: None)
time.sleep(600)
"""
BAD = {  # what it does: the script, and words that its message holds
    "leaves a daemon": (DAEMON, ["Traceback", "RuntimeError: planted"]),
    "ignores signals": (
        SIGNALS,
        [f"no training step was observed in {LIMIT_SECONDS} s", "--limit"],
    ),
    "waits for input": ("input('Name? ')", ["EOFError", "waits for keyboard input"]),
    "measures its terminal": (
        "import os; height, width = os.popen('stty size').read().split(); 1 / 0",
        ["ZeroDivisionError: division by zero"],
    ),
    "goes into the background": (BACKGROUND, ["continued in the background"]),
    "exits": ("import sys; print('no data'); sys.exit()", ["ended before enough", "no data"]),
    "exits with a number": ("import sys; sys.exit(7)", ["called sys.exit(7)"]),
    "needs arguments": (ARGUMENTS, ["required: --data", "after --, as in `onsight-explain bad.py"]),
    "prints a lot": ("print('x' * 10**7)\n1 / 0", ["ZeroDivisionError: division by zero"]),
    "is killed": ("import os; os.kill(os.getpid(), 9)", ["SIGKILL", "out of memory"]),
    "closes its output": ("import os; os.close(1); os.close(2); 1 / 0", ["exit code 3"]),
}
NOT_RUN = {
    "has a syntax error": ("x = 1\ndef f(:\n", ["bad.py, line 2", "invalid syntax"]),
    "is Python 2": ("print 'x'\n", ["bad.py, line 1", "Python 2"]),
    "is empty": ("# nothing\n", ["contains no code"]),
}


@pytest.fixture(scope="module")
def messages(build_once):
    """The message of each bad script and whether its folder is unchanged; the processes left."""

    def explain_all(root):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ONSIGHT_TEST_FOLDER", str(root))  # inherited by every process
            with Processes(root / "bad.py", [], 100, LIMIT_SECONDS) as processes:
                processes.prepare(is_late=False)  # one process, forked for all
                found = {
                    name: explained(processes, root / name.replace(" ", "-"), name) for name in BAD
                }
            left = running(root)
        (root / "messages.json").write_text(json.dumps([found, left]))

    return json.loads((build_once("bad-scripts", explain_all) / "messages.json").read_text())


def explained(processes, folder, name):
    folder.mkdir()
    processes.script = folder / "bad.py"
    processes.script.write_text(BAD[name][0], encoding="utf-8")
    before = digests(folder)
    try:
        trace = processes.start().trace()
    except ScriptFailed as error:
        message = str(error)
    else:
        assert not trace.images
        message = describe_no_training(trace.ended, processes.limit_seconds, trace.last_output)
    return message, before == digests(folder)


def digests(folder):
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def running(root):
    """Processes of the scripts, by a variable that all of them inherit."""
    entry = f"ONSIGHT_TEST_FOLDER={root}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            entries = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(process.name) != os.getpid() and entry in entries:
            found.append(process.name)
    return found


@pytest.mark.parametrize("name", BAD)
def test_a_bad_script_ends_in_one_clear_message(messages, name):
    message, is_unchanged = messages[0][name]
    for words in BAD[name][1]:
        assert words in message
    assert len(message) < 5000
    assert "onsight_explain/" not in message
    assert is_unchanged


def test_nothing_is_left_running(messages):
    assert messages[1] == []


@pytest.mark.parametrize("name", NOT_RUN)
def test_what_cannot_run_is_not_started(tmp_path, name, monkeypatch):
    monkeypatch.setattr("onsight_explain.process.processes.Processes.__enter__", pytest.fail)
    script = tmp_path / "bad.py"
    script.write_text(NOT_RUN[name][0], encoding="utf-8")
    with pytest.raises(ExplainError) as failure:
        explain_script(script, [])
    for words in NOT_RUN[name][1]:
        assert words in str(failure.value)


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        ("ModuleNotFoundError: No module named 'PIL'", 3, "pip install pillow"),
        ("ModuleNotFoundError: No module named 'timm.layers'", 3, "pip install timm"),
        ("ModuleNotFoundError: No module named 'my_tools'", 3, "provides my_tools is not known"),
        ("Usage: train.py [OPTIONS]\nError: Missing option '--data'.", 3, "after --"),
        ("", -11, "SIGSEGV"),
        ("", None, "killed at its time limit"),
        ("MemoryError", 3, "MemoryError"),
        ("no such data", 3, "no such data"),
    ],
)
def test_a_failure_message_contains_what_to_do(said, code, words):
    assert words in describe_failure(said, code, "train.py")


def test_a_failure_is_described_without_sigkill_as_on_windows(monkeypatch):
    monkeypatch.delattr(signal, "SIGKILL")
    assert describe_failure("no such data", 1, "train.py") == "no such data"


@pytest.mark.usefixtures("forked")
def test_a_failed_script_is_reported_by_the_command(tmp_path, capsys):
    script = tmp_path / "bad.py"
    script.write_text("raise RuntimeError('planted')\n", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main([str(script)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("RuntimeError: planted\n")


def test_a_folder_is_no_script(tmp_path):
    with pytest.raises(ExplainError, match="is a folder: name the script in it"):
        explain_script(tmp_path, [])


def test_a_script_that_deletes_itself_is_told_so(tmp_path, monkeypatch):
    """By another program, whose changes are not made to copies; while it is watched, or later."""
    script = tmp_path / "train.py"
    script.write_text("import torch\n")

    def watch(bench, seconds):
        script.unlink()
        return Trace(ended="window", startup_seconds=1.0, seconds=1.0, images=5), None

    monkeypatch.setattr(ScriptBench, "watch", watch)
    monkeypatch.setattr(Processes, "__enter__", lambda processes: processes)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    with pytest.raises(ExplainError, match="deleted or moved itself, .* restore it"):
        explain_script(script, [])
    with pytest.raises(SystemExit, match="deleted or moved itself, .* restore it"):
        execute(script)
