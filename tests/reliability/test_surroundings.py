"""Events around a run: the clock jumps, another run wants its folder, its terminal is gone."""

import functools
import os
import random
import signal
import time

from instants import signal_at
from PIL import Image
from tally import Tally, count
from trials import leftovers, resume, train

from onsight.training.verify_resume import compare_folders

DAY = 86_400


def jump(seed):
    """Make each reading of the wall clock wrong by up to a day, or start from 1970."""
    drawn, real = random.Random(seed), time.time
    time.time = lambda: real() + drawn.choice([-DAY, DAY, -real(), -3600, 3600])


def jump_and_stop(seed, at, saved):
    jump(seed)
    signal_at(signal.SIGTERM, at, True, saved)


def test_jumps_of_the_clock_change_nothing(instants, undisturbed, shared_bars, tmp_path):
    tally, drawn = Tally("jumps of the wall clock"), random.Random(5)
    for number in range(count(20, 1)):
        out, saved = tmp_path / f"{number}", tmp_path / f"{number}.saved"
        at = drawn.randrange(1, int(instants[1] * 0.9))
        with tally.trial(f"instant {at:,}"):
            prepare = functools.partial(jump_and_stop, number, at, saved)
            ended = train(shared_bars, out, prepare=prepare)
            assert ended.code == 128 + signal.SIGTERM, ended.output
            for path in (out / "checkpoints").iterdir():  # the oldest may seem the newest
                moment = drawn.choice([0, 2**31, time.time() + DAY])
                os.utime(path, (moment, moment))
            assert resume(shared_bars, out).code == 0
            assert compare_folders(undisturbed, out).differences == []
    tally.end()


def try_another_at(bars, out, at, notes):
    """At an instant, while this process writes to the folder, start other runs in it."""
    from instants import Instants, watch_all_threads

    def act():
        import sys

        sys.setprofile(None)
        for number, again in enumerate([[], ["--resume", "--cache-folder", f"{out}-cache"]]):
            pid = os.fork()
            if pid == 0:
                try:
                    _try(bars, out, again, f"{notes}-{number}")
                finally:
                    os._exit(9)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with open(notes, "a", encoding="utf-8") as file:
                file.write(f"{code} ")

    watch_all_threads(Instants(act, at, True))


def _try(bars, out, again, log):
    import sys

    from onsight.cli import main

    with open(log, "w", encoding="utf-8") as stderr:
        sys.stderr = stderr
        try:
            main(["train", str(bars), "--out", str(out), *again])
        except SystemExit as ended:
            stderr.flush()
            os._exit(ended.code)


def test_a_folder_has_one_run(instants, undisturbed, shared_bars, tmp_path):
    tally, drawn = Tally("two runs in one folder"), random.Random(6)
    for number in range(count(20, 1)):
        out, notes = tmp_path / f"{number}", tmp_path / f"{number}.notes"
        at = drawn.randrange(1, instants[1])
        prepare = functools.partial(try_another_at, shared_bars, out, at, notes)
        with tally.trial(f"instant {at:,}"):
            ended = train(shared_bars, out, prepare=prepare)
            assert ended.code == 0, ended.output
            assert notes.read_text().split() == ["2", "2"]
            assert "in use" in notes.with_name(f"{notes.name}-0").read_text()
            assert "in use by another run" in notes.with_name(f"{notes.name}-1").read_text()
            assert leftovers(out) == []
            assert compare_folders(undisturbed, out).differences == []
    tally.end()


def lose_terminal():
    """Make writing to stdout and stderr fail, because nobody reads them any more."""
    import sys

    reader, writer = os.pipe()
    os.close(reader)
    for number in (1, 2):
        os.dup2(writer, number)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def test_a_run_survives_the_loss_of_its_terminal(undisturbed, shared_bars, tmp_path):
    ended = train(shared_bars, tmp_path / "run", prepare=lose_terminal)
    assert ended.code == 0
    assert compare_folders(undisturbed, tmp_path / "run").differences == []


def replace_at(folder, at):
    """At an instant, replace one of the training images."""
    from instants import Instants, watch_all_threads

    def act():
        Image.new("L", (12, 12), 77).save(folder / "across" / "000.png")

    watch_all_threads(Instants(act, at, True))


def test_an_image_replaced_while_training_changes_nothing(instants, undisturbed, bars, tmp_path):
    """Decoded images are kept; only a resumed run notices, and refuses."""
    out, former = tmp_path / "run", (bars / "across" / "000.png").read_bytes()
    ended = train(bars, out, prepare=functools.partial(replace_at, bars, instants[1] // 3))
    assert ended.code == 0, ended.output
    assert (bars / "across" / "000.png").read_bytes() != former
    assert compare_folders(undisturbed, out).differences == []
    again = resume(bars, out)
    assert again.code == 2
    assert "the images changed" in again.output
