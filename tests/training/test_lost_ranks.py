"""A run that loses ranks goes on from its last checkpoint, and ends as if nothing had been."""

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import struck
from launched import Launched
from struck import Fault

EPOCHS, INTERVAL = 3, 2  # steps between two checkpoints


@pytest.fixture(scope="module")
def undisturbed(shared_bars, tmp_path_factory):
    """The same run without faults."""
    folder = tmp_path_factory.mktemp("undisturbed")
    words = ["--checkpoint-steps", INTERVAL]
    code, watched, notes, out = struck.run(
        folder, shared_bars, [], EPOCHS, *words, launched=Launched
    )
    assert code == 0, watched.text
    assert struck.check_pictures(notes, EPOCHS) == 0
    return out


def test_ranks_killed_in_a_step_while_evaluating_and_while_saving(
    shared_bars, undisturbed, tmp_path
):
    faults = [
        Fault("step", 1, 0, 3),
        Fault("saving", 0, 1, 2),
        Fault("evaluating", 0, 1, 0),
    ]
    words = ["--checkpoint-steps", INTERVAL, "--restarts", len(faults)]
    code, watched, notes, out = struck.run(
        tmp_path, shared_bars, faults, EPOCHS, *words, launched=Launched
    )
    assert code == 0, watched.text
    for number, fault in enumerate(faults):
        _, line = struck.noted_after(notes, number, watched)
        assert f"rank {fault.rank} (process " in line
        assert "was lost, killed by SIGKILL" in line
    # Checkpoints are written beside the step: one more may be lost with the process.
    assert struck.check_pictures(notes, EPOCHS) <= len(faults) * (2 * INTERVAL)
    assert struck.difference(undisturbed, out) <= 1e-12


def test_a_rank_that_stops_while_evaluating_is_replaced(shared_bars, undisturbed, tmp_path):
    faults = [Fault("evaluating", 1, 1, 0, signal.SIGSTOP)]
    words = ["--checkpoint-steps", INTERVAL]
    code, watched, notes, out = struck.run(
        tmp_path, shared_bars, faults, EPOCHS, *words, launched=Launched
    )
    assert code == 0, watched.text
    _, line = struck.noted_after(notes, 0, watched)
    assert "rank 1 (process " in line
    assert "has not been heard from for 15 s" in line
    assert struck.difference(undisturbed, out) <= 1e-12


def test_a_run_that_may_not_be_restarted_again_ends(shared_bars, tmp_path):
    faults = [Fault("step", 1, 0, 1), Fault("step", 1, 0, 2)]
    words = ["--checkpoint-steps", INTERVAL, "--restarts", 1]
    code, watched, _, _ = struck.run(
        tmp_path, shared_bars, faults, EPOCHS, *words, launched=Launched
    )
    assert code == 1
    assert watched.text.count("the ranks are started again (1 of at most 1 times)") == 1
    assert watched.text.count("error: rank 1 (process ") == 1
