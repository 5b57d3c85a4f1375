"""Ranks that are killed or stopped at many instants: found, named, and the run goes on as if not.

Prints a table: each row is one run of two ranks whose faults follow each other.
"""

import signal
import statistics
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "training")]

import struck  # noqa: E402
from launched import Launched  # noqa: E402
from struck import Fault  # noqa: E402

from conftest import make_bars  # noqa: E402

EPOCHS, STEPS, INTERVAL = 12, 6, 4  # steps of an epoch; between two checkpoints
PROMISED_SECONDS = 60


def _steps(count, number):
    """Faults in steps spread over the run, in either rank in turn."""
    at = [3 + place * (EPOCHS * STEPS - 6) // count for place in range(count)]
    return [Fault("step", n % 2, s // STEPS, s % STEPS, number) for n, s in enumerate(at)]


KINDS = {
    "SIGKILL in a step": _steps(20, signal.SIGKILL),
    "SIGSTOP in a step": _steps(5, signal.SIGSTOP),
    "SIGKILL while evaluating": [Fault("evaluating", n % 2, 2 * n, 0) for n in range(5)],
    "SIGSTOP while evaluating": [
        Fault("evaluating", n % 2, 3 * n, 0, signal.SIGSTOP) for n in range(2)
    ],
    "SIGKILL while saving": [Fault("saving", 0, 2 * n, 4) for n in range(5)],
}
ROWS = []


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    return make_bars(tmp_path_factory.mktemp("data") / "bars")


@pytest.fixture(scope="module")
def undisturbed(bars, tmp_path_factory):
    """The same run without faults."""
    folder = tmp_path_factory.mktemp("undisturbed")
    words = ["--checkpoint-steps", INTERVAL]
    code, watched, notes, out = struck.run(folder, bars, [], EPOCHS, *words, launched=Launched)
    assert code == 0, watched.text
    assert struck.check_pictures(notes, EPOCHS) == 0
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_loses_ranks_ends_as_if_undisturbed(bars, undisturbed, tmp_path, kind):
    faults = KINDS[kind]
    words = ["--checkpoint-steps", INTERVAL, "--restarts", len(faults)]
    code, watched, notes, out = struck.run(
        tmp_path, bars, faults, EPOCHS, *words, launched=Launched
    )
    assert code == 0, watched.text
    said = [struck.noted_after(notes, number, watched) for number in range(len(faults))]
    back = [struck.recovered_after(notes, number) for number in range(len(faults))]
    for fault, (seconds, line) in zip(faults, said, strict=True):
        assert f"rank {fault.rank} (process " in line
        assert "last seen " in line
        assert seconds < PROMISED_SECONDS
    assert max(back) < PROMISED_SECONDS
    repeats = struck.check_pictures(notes, EPOCHS)
    assert repeats <= len(faults) * (INTERVAL + 1)
    difference = struck.difference(undisturbed, out)
    noticed = [seconds for seconds, _ in said]
    ROWS.append(
        {
            "fault": kind,
            "times": len(faults),
            "said after (median, most), s": f"{statistics.median(noticed):.1f}, {max(noticed):.1f}",
            "trains again after, s": f"{statistics.median(back):.1f}, {max(back):.1f}",
            "named": f"{len(said)} of {len(faults)}",
            "steps repeated": repeats,
            "greatest difference of weights": f"{difference:g}",
        }
    )
    print("\n" + struck.table(ROWS, list(ROWS[0])))
    assert difference <= 1e-12
