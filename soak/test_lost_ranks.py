"""Ranks that are killed or stopped: each loss is detected and named, and the results are the same.

It prints a table with a row for each run of two ranks, in which several faults strike in turn.
"""

import random
import signal
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "testing")]

import struck  # noqa: E402
from launched import Launched  # noqa: E402
from struck import Fault  # noqa: E402

from bars import make_bars  # noqa: E402

EPOCHS, STEPS, INTERVAL = 12, 6, 4  # steps per epoch; steps between checkpoints
PROMISED_SECONDS = 60


def _steps(count: int, number: int, seed: int) -> list[Fault]:
    """Return faults in random steps of the run, alternating between the ranks."""
    at = sorted(random.Random(seed).sample(range(EPOCHS * STEPS), count))
    return [Fault("step", n % 2, s // STEPS, s % STEPS, number) for n, s in enumerate(at)]


KINDS: dict[str, list[Fault]] = {
    "SIGKILL in a step": _steps(20, signal.SIGKILL, seed=1),
    "SIGSTOP in a step": _steps(5, signal.SIGSTOP, seed=2),
    "SIGKILL while evaluating": [
        *(Fault("evaluating", n % 2, 3 * n, 0) for n in range(3)),
        Fault("judging", 1, 0, 0),
    ],
    "SIGSTOP while evaluating": [
        Fault("evaluating", n % 2, 3 * n, 0, signal.SIGSTOP) for n in range(2)
    ],
    "SIGKILL while saving": [Fault("saving", 0, 2 * n, 4) for n in range(5)],
}
ROWS: list[dict[str, object]] = []


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 60 small images."""
    path: Path = make_bars(tmp_path_factory.mktemp("data") / "bars")
    return path


@pytest.fixture(scope="module")
def undisturbed(bars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run without faults."""
    folder, words = tmp_path_factory.mktemp("undisturbed"), ["--checkpoint-steps", INTERVAL]
    code, watched, notes, out = struck.run(folder, bars, [], EPOCHS, *words, launched=Launched)
    assert code == 0, watched.text
    assert struck.check_images(notes, EPOCHS) == 0
    path: Path = out
    return path


def run_struck(folder: Path, bars: Path, faults: list[Fault], undisturbed: Path) -> dict[str, Any]:
    """Run with faults, check every promise, and return the figures."""
    words = ["--checkpoint-steps", INTERVAL, "--restarts", len(faults)]
    code, watched, notes, out = struck.run(folder, bars, faults, EPOCHS, *words, launched=Launched)
    assert code == 0, watched.text
    named = [struck.noted_after(notes, number, watched) for number in range(len(faults))]
    recovered = [struck.recovered_after(notes, number, watched) for number in range(len(faults))]
    for fault, (_, line) in zip(faults, named, strict=True):
        assert f"rank {fault.rank} (process " in line
        assert "last seen " in line
    repeats = struck.check_images(notes, EPOCHS)
    # Checkpoints are written in the background, so the latest may be lost with the process.
    assert repeats <= len(faults) * 2 * INTERVAL
    return {
        "named": [seconds for seconds, _ in named],
        "recovered": recovered,
        "repeats": repeats,
        "difference": struck.difference(undisturbed, out),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_loses_ranks_ends_as_if_undisturbed(
    bars: Path, undisturbed: Path, tmp_path: Path, kind: str
) -> None:
    found = run_struck(tmp_path, bars, KINDS[kind], undisturbed)
    ROWS.append(
        {
            "fault": kind,
            "times": len(KINDS[kind]),
            "named after (median, maximum), s": _median_and_max(found["named"]),
            "next step completed after, s": _median_and_max(found["recovered"]),
            "steps repeated": found["repeats"],
            "largest difference of weights": f"{found['difference']:g}",
        }
    )
    print("\n" + struck.table(ROWS, list(ROWS[0])))
    assert max(found["recovered"]) < PROMISED_SECONDS
    assert found["difference"] <= 1e-12


def _median_and_max(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"
