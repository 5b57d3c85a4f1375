"""SIGKILL at instants of a run: no save is lost, and the resumed run equals an undisturbed one."""

import functools
import random
import signal
import subprocess
import sys
import time

import pytest
from instants import kill_in_write, signal_at
from tally import Tally, count
from trials import leftovers, make_arguments, resume, train

from onsight.tensorfile import read_tensors
from onsight.training.verify_resume import compare_folders

STEPS = 18  # 96 training images in batches of 16, three times


def check_resumed(bars, out, saved, undisturbed):
    """The last complete save exists; resumed, the run ends the same, without temporary files."""
    last = out / "checkpoints" / "last.safetensors"
    if saved.exists() and saved.read_text():
        now = read_tensors(last)[1]["progress"]
        assert (now["epoch"], now["step"]) >= tuple(map(int, saved.read_text().split()))
    elif last.exists():
        read_tensors(last)
    again = resume(bars, out)
    assert again.code == 0, again.output
    assert leftovers(out) == []
    assert compare_folders(undisturbed, out).differences == []


@pytest.mark.parametrize("kind", ["anywhere", "inside a save"])
def test_killed_at_an_instant(kind, instants, undisturbed, shared_bars, tmp_path):
    tally, drawn = Tally(f"SIGKILL {kind}"), random.Random(kind)
    inside = kind == "inside a save"
    for number in range(count(100 if kind == "anywhere" else 60, 1)):
        out, saved = tmp_path / f"{number}", tmp_path / f"{number}.saved"
        at = drawn.randrange(1, instants[inside])
        prepare = functools.partial(signal_at, signal.SIGKILL, at, inside, saved)
        with tally.trial(f"instant {at:,}"):
            ended = train(shared_bars, out, prepare=prepare)
            assert ended.code == -signal.SIGKILL, ended.output
            check_resumed(shared_bars, out, saved, undisturbed)
    tally.end()


def test_killed_in_the_middle_of_a_write(undisturbed, shared_bars, tmp_path):
    tally, drawn = Tally("SIGKILL in the middle of writing a checkpoint"), random.Random(0)
    for number in range(count(40, 1)):
        out, saved = tmp_path / f"{number}", tmp_path / f"{number}.saved"
        save, part = drawn.randrange(1, STEPS + 3), drawn.random()
        prepare = functools.partial(kill_in_write, save, part, saved)
        with tally.trial(f"save {save}, after {part:.2f} of its bytes"):
            ended = train(shared_bars, out, prepare=prepare)
            assert ended.code == -signal.SIGKILL, ended.output
            assert leftovers(out)
            check_resumed(shared_bars, out, saved, undisturbed)
    tally.end()


def test_killed_while_writing_its_first_file(undisturbed, shared_bars, tmp_path):
    """The folder has no run to resume, and can be used again."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / ".onsight-0123456789abcdef.tmp").write_text("epochs = ")
    check_resumed(shared_bars, tmp_path / "run", tmp_path / "none", undisturbed)


@pytest.mark.skipif(count(0, 1), reason="test_run.py always kills a real process")
def test_killed_by_the_clock_from_outside(undisturbed, shared_bars, tmp_path):
    tally, drawn = Tally("SIGKILL of `python -m onsight train` by the clock"), random.Random(1)
    for number in range(10):
        out = tmp_path / f"{number}"
        words = [str(word) for word in make_arguments(shared_bars, out)]
        with subprocess.Popen(
            [sys.executable, "-m", "onsight", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            last = out / "checkpoints" / "last.safetensors"
            while process.poll() is None and not last.exists():
                time.sleep(0.001)
            time.sleep(drawn.uniform(0, 0.3))
            process.kill()
        with tally.trial(f"trial {number}"):
            check_resumed(shared_bars, out, tmp_path / "none", undisturbed)
    tally.end()
