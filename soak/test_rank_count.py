"""A run resumed with another number of ranks: each image once per epoch, the same weights."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "testing")]

import struck  # noqa: E402
from launched import Launched  # noqa: E402
from struck import Fault  # noqa: E402

from bars import make_bars  # noqa: E402

EPOCHS = 6
STOPS = [(1, 2), (3, 4)]  # (epoch, step), both from 0, in which SIGTERM is sent


@pytest.mark.parametrize("ranks", [(1, 1, 1), (1, 2, 1), (2, 1, 2), (2, 3, 1)])
def test_a_run_resumes_with_another_number_of_ranks(ranks: tuple[int, ...], tmp_path: Path) -> None:
    bars = make_bars(tmp_path / "bars")
    notes, out = train(tmp_path / "run", bars, STOPS, ranks)
    assert struck.check_images(notes, EPOCHS) == 0
    _, undisturbed = train(tmp_path / "undisturbed", bars, [], [1])
    assert struck.difference(undisturbed, out) <= 1e-12


def train(
    folder: Path, data: Path, stops: list[tuple[int, int]], ranks: Sequence[int]
) -> tuple[Path, Path]:
    """Train, stop, and resume with the next number of ranks; returns notes and run folder."""
    folder.mkdir()
    notes, out = folder / "notes", folder / "run"
    faults = [Fault("step", 0, *stop, signal.SIGTERM) for stop in stops]
    words = [data, *struck.WORDS, "--epochs", EPOCHS, "--out", out]
    with struck.network(notes, faults):
        for number, count in enumerate(ranks):
            again = ["--resume"] if number else []
            code, _, err = Launched(folder, *words, *again, "--ranks", count).end(300)
            assert code == (143 if number < len(stops) else 0), err
    return notes, out
