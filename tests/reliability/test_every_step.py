"""Runs stopped at every step or resumed with other threads: the same bits, the same order."""

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

NET = ["--model", "sprint", "--ema", "0.9"]  # with batch norm's statistics and averaged weights
DECODING = {
    "decoded before training": ["--residency", "memory"],
    "decoded during training by two threads": ["--residency", "stream", "--threads", "2"],
}


def note_steps(notes, stop_at=0):
    """Record the images of each step in order; request a stop in the given one."""
    real, steps = Trainer._train_step, 0

    def noted(self, batch, *schedule):
        nonlocal steps
        steps += 1
        with open(notes, "a", encoding="utf-8") as file:
            file.write(json.dumps([self.progress.epoch, self.progress.step, *batch.ids.tolist()]))
            file.write("\n")
        real(self, batch, *schedule)
        if steps == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    Trainer._train_step = noted


def read_steps(notes):
    return [json.loads(line) for line in notes.read_text().splitlines()]


def stop_and_resume(bars, out, notes, stop_at, *words):
    """Stop a run in a step, and resume it."""
    ended = train(bars, out, *words, prepare=functools.partial(note_steps, notes, stop_at))
    assert ended.code == 128 + signal.SIGTERM, ended.output
    ended = resume(bars, out, *words, prepare=functools.partial(note_steps, notes))
    assert ended.code == 0, ended.output
    assert leftovers(out) == []


CASES = [(decoding, precision) for decoding in DECODING for precision in ("fp32", "bf16")]


@pytest.mark.parametrize(("decoding", "precision"), count(CASES, CASES[-1:]))
def test_stopped_at_every_step(decoding, precision, shared_bars, tmp_path):
    tally = Tally(f"stopped at every step, {precision}, images {decoding}")
    words = [*NET, *DECODING[decoding], "--precision", precision]
    note = functools.partial(note_steps, tmp_path / "undisturbed.notes")
    assert train(shared_bars, tmp_path / "undisturbed", *words, prepare=note).code == 0
    steps = range(1, STEPS + 1)
    for stop_at in count(steps, random.Random(f"{decoding} {precision}").sample(steps, 1)):
        out, notes = tmp_path / f"{stop_at}", tmp_path / f"{stop_at}.notes"
        with tally.trial(f"step {stop_at}"):
            stop_and_resume(shared_bars, out, notes, stop_at, *words)
            assert read_steps(notes) == read_steps(tmp_path / "undisturbed.notes")
            assert compare_folders(tmp_path / "undisturbed", out).differences == []
    tally.end()


def test_runs_with_other_threads_see_the_same_images_in_the_same_order(shared_bars, tmp_path):
    tally, drawn = Tally("resumed with 2 threads, then with 1"), random.Random(7)
    words = ["--residency", "stream"]
    note = functools.partial(note_steps, tmp_path / "undisturbed.notes")
    assert train(shared_bars, tmp_path / "undisturbed", *words, prepare=note).code == 0
    undisturbed = read_steps(tmp_path / "undisturbed.notes")
    images = undisturbed[0][2:] + undisturbed[1][2:]
    assert images != sorted(images)  # they are shuffled
    for number in range(count(20, 1)):
        out, notes = tmp_path / f"{number}", tmp_path / f"{number}.notes"
        first, second = sorted(drawn.sample(range(1, STEPS), 2))
        with tally.trial(f"steps {first} and {second}"):
            for stop_at, threads in ((first, 1), (second - first, 2), (0, 1)):
                again = ["--threads", threads, *words]
                prepare = functools.partial(note_steps, notes, stop_at)
                ended = resume(shared_bars, out, *again, prepare=prepare)
                assert ended.code == (128 + signal.SIGTERM if stop_at else 0), ended.output
            assert read_steps(notes) == undisturbed
    tally.end()
