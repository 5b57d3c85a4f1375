"""A run that loses ranks goes on from its last checkpoint, and ends as if nothing had been.

Few runs for many promises: each start of the ranks takes seconds. One lost rank is enough for every
day; `make soak` loses them wherever they can be lost.
"""

import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import onsight
from onsight.report.console import SilentReporter

sys.path.insert(0, str(Path(__file__).parent))
import struck
from launched import Launched, users_module
from struck import Fault

EPOCHS, INTERVAL = 3, 2  # steps between two checkpoints
FAULTS = [
    Fault("step", 1, 0, 3),
    Fault("saving", 0, 1, 2),
    Fault("evaluating", 1, 1, 0, signal.SIGSTOP),
    Fault("evaluating", 0, 2, 0),
]


def assert_weights_of_an_undisturbed_run(run, data, folder):
    fields = {"model": "theirs:Precise", "image_size": "16", "batch_size": 16, "folds": 1}
    fields |= {"threads": 1, "plan": "default", "epochs": EPOCHS, "reporter": SilentReporter()}
    with users_module(folder):
        alone = onsight.train(data, out=folder / "alone", **fields)
    assert struck.difference(alone.path, run) <= 1e-12


def test_a_run_that_loses_a_rank_ends_as_if_nothing_had_been(shared_bars, tmp_path):
    words = [tmp_path / "struck", shared_bars, FAULTS[:1], EPOCHS, "--checkpoint-steps", INTERVAL]
    words += ["--log", "none"]  # importing TensorBoard takes a second
    code, watched, notes, run = struck.run(*words, launched=Launched)
    assert code == 0, watched.text
    _, line = struck.noted_after(notes, 0, watched)
    assert "rank 1 (process " in line
    assert "was lost, killed by SIGKILL" in line
    assert watched.text.count("started again") == 1
    assert struck.check_images(notes, EPOCHS) <= 2 * INTERVAL
    assert_weights_of_an_undisturbed_run(run, shared_bars, tmp_path)


@pytest.fixture(scope="module")
def lost(shared_bars, tmp_path_factory):
    """A run with these faults, of which it may not be restarted after the last, then resumed."""
    folder = tmp_path_factory.mktemp("lost")
    words = [folder, shared_bars, FAULTS, EPOCHS, "--checkpoint-steps", INTERVAL]
    words += ["--restarts", len(FAULTS) - 1]
    code, watched, notes, run = struck.run(*words, launched=Launched)
    resumed, again, _, _ = struck.run(*words, "--resume", launched=Launched)
    assert resumed == 0, again.text
    return SimpleNamespace(code=code, watched=watched, notes=notes, run=run)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_lost_rank_is_named_wherever_it_is_lost(lost, number):
    fault = FAULTS[number]
    line = struck.noted_after(lost.notes, number, lost.watched)[1] or lost.watched.lines[-1][1]
    assert f"rank {fault.rank} (process " in line
    assert ", last seen " in line
    stopped = fault.signal == signal.SIGSTOP
    what = "has not been heard from for 15 s" if stopped else "was lost, killed by SIGKILL"
    assert what in line


@pytest.mark.soak
def test_ranks_are_started_again_as_often_as_asked_then_the_run_ends(lost):
    assert lost.code == 1
    assert "started again (3 of at most 3 times)" in lost.watched.text
    assert lost.watched.text.count("started again") == 3
    last = lost.watched.lines[-1][1]
    assert last.startswith("error: rank 0 (process ")
    assert f"--out {lost.run} --resume" in last
    assert lost.watched.text.count("error: ") == 1
    assert "Traceback" not in lost.watched.text


@pytest.mark.soak
def test_every_image_counts_once_and_little_is_repeated(lost):
    # Checkpoints are written beside the step: one more may be lost with the process.
    assert struck.check_images(lost.notes, EPOCHS) <= len(FAULTS) * (2 * INTERVAL)


@pytest.mark.soak
def test_the_weights_are_those_of_an_undisturbed_run(lost, shared_bars, tmp_path):
    assert_weights_of_an_undisturbed_run(lost.run, shared_bars, tmp_path)
