"""Stopped at every step, or gone on with in other threads: the same bits, the same order."""

import functools
import json
import os
import random
import signal

import pytest
from tally import Tally, count
from test_kills import STEPS
from trials import leftovers, resume, train

from onsight.training.trainer import Trainer
from onsight.training.verify_resume import compare_folders

NET = ["--model", "sprint", "--ema", "0.9"]  # with batch norm's statistics to keep, and an average
DECODING = {
    "decoded before": ["--residency", "memory"],
    "decoded by two threads meanwhile": ["--residency", "stream", "--threads", "2"],
}


def note_steps(told, stop_at=0):
    """Write the images of each step in their order; ask for a stop in the given one."""
    real, made = Trainer._train_step, 0

    def noted(self, batch, *schedule):
        nonlocal made
        made += 1
        with open(told, "a", encoding="utf-8") as file:
            file.write(json.dumps([self.progress.epoch, self.progress.step, *batch.ids.tolist()]))
            file.write("\n")
        real(self, batch, *schedule)
        if made == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    Trainer._train_step = noted


def noted_steps(told):
    return [json.loads(line) for line in told.read_text().splitlines()]


def stop_and_resume(bars, out, told, stop_at, *words):
    """A run that is stopped in a step, and goes on to its end."""
    ended = train(bars, out, *words, prepare=functools.partial(note_steps, told, stop_at))
    assert ended.code == 128 + signal.SIGTERM, ended.said
    ended = resume(bars, out, *words, prepare=functools.partial(note_steps, told))
    assert ended.code == 0, ended.said
    assert leftovers(out) == []


CASES = [(decoding, precision) for decoding in DECODING for precision in ("fp32", "bf16")]


@pytest.mark.parametrize(("decoding", "precision"), count(CASES, CASES[-1:]))
def test_stopped_at_every_step(decoding, precision, shared_bars, tmp_path):
    tally = Tally(f"stopped at every step, {precision}, images {decoding}")
    words = [*NET, *DECODING[decoding], "--precision", precision]
    note = functools.partial(note_steps, tmp_path / "whole.told")
    assert train(shared_bars, tmp_path / "whole", *words, prepare=note).code == 0
    steps = range(1, STEPS + 1)
    for stop_at in count(steps, random.Random(f"{decoding} {precision}").sample(steps, 1)):
        out, told = tmp_path / f"{stop_at}", tmp_path / f"{stop_at}.told"
        with tally.trial(f"step {stop_at}"):
            stop_and_resume(shared_bars, out, told, stop_at, *words)
            assert noted_steps(told) == noted_steps(tmp_path / "whole.told")
            assert compare_folders(tmp_path / "whole", out).differences == []
    tally.end()


def test_other_threads_train_on_the_same_images_in_the_same_order(shared_bars, tmp_path):
    tally, drawn = Tally("gone on with in 2 threads, then in 1"), random.Random(7)
    words = ["--residency", "stream"]
    note = functools.partial(note_steps, tmp_path / "whole.told")
    assert train(shared_bars, tmp_path / "whole", *words, prepare=note).code == 0
    whole = noted_steps(tmp_path / "whole.told")
    assert sorted(whole[0][2:] + whole[1][2:]) != whole[0][2:] + whole[1][2:]  # they are shuffled
    for number in range(count(20, 1)):
        out, told = tmp_path / f"{number}", tmp_path / f"{number}.told"
        first, second = sorted(drawn.sample(range(1, STEPS), 2))
        with tally.trial(f"steps {first} and {second}"):
            for stop_at, threads in ((first, 1), (second - first, 2), (0, 1)):
                again = ["--threads", threads, *words]
                prepare = functools.partial(note_steps, told, stop_at)
                ended = resume(shared_bars, out, *again, prepare=prepare)
                assert ended.code == (128 + signal.SIGTERM if stop_at else 0), ended.said
            assert noted_steps(told) == whole
    tally.end()
