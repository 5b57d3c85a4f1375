"""A complete run in torchrun's elastic mode: one of two machines is lost and comes back.

The run has 2, 1 and 2 ranks. Both "machines" are process groups on this one, each with an agent of
torchrun and a rank.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "testing")]

import struck  # noqa: E402
from launched import Launched  # noqa: E402
from struck import Watched  # noqa: E402

from bars import make_bars  # noqa: E402

EPOCHS, INTERVAL = 60, 4  # steps between two checkpoints
TIMEOUT_SECONDS = 300


class Machine:
    """An agent of torchrun with its rank, in its own session."""

    def __init__(self, port: int, *arguments: object) -> None:
        launcher = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3"]
        launcher += ["--rdzv-id", "job", "--rdzv-backend", "c10d"]
        launcher += ["--rdzv-endpoint", f"127.0.0.1:{port}"]
        launcher += ["--rdzv-conf", "last_call_timeout=5", "--local-addr", "127.0.0.1"]
        command = [sys.executable, "-m", "torch.distributed.run", *launcher, "-m", "onsight"]
        self.process = subprocess.Popen(
            [*command, "train", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        )
        self.watched = Watched()
        self.reading = self.watched.read(self.process.stdout)

    def lose(self) -> None:
        """Kill the agent and its rank."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        ranks = children.read_text().split() if self.process.poll() is None else []
        for number in (self.process.pid, *map(int, ranks)):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.end()

    def end(self) -> int:
        """Wait for the end; returns the exit code."""
        with self.process:
            code = self.process.wait(TIMEOUT_SECONDS)
            self.reading.join()
        return code


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def wait_for_steps(
    notes: Path, ranks: int, count: int, since: float, machines: list[Machine]
) -> float:
    """Wait until this many ranks have completed this many steps; returns the first step's time."""
    limit = time.monotonic() + TIMEOUT_SECONDS
    while True:
        rows = [row for row in struck.steps_noted(notes) if row[4] == ranks and row[0] > since]
        if len(rows) >= count:
            return float(rows[0][0])
        for machine in machines:
            assert machine.process.poll() is None, machine.watched.text
        assert time.monotonic() < limit, "\n".join(machine.watched.text for machine in machines)
        time.sleep(0.2)


@pytest.fixture
def started() -> Iterator[list[Machine]]:
    """A list for machines that a test starts; they are killed at its end."""
    machines: list[Machine] = []
    yield machines
    for machine in machines:
        machine.lose()


def two_one_two(
    folder: Path, bars: Path, started: list[Machine]
) -> tuple[Path, Path, str, dict[str, float]]:
    """Train with 2, 1 and 2 ranks; returns notes, run folder, output and recovery times."""
    notes, out = folder / "notes", folder / "run"
    with struck.network(notes, []):
        (notes / "slow").touch()
        words = [bars, *struck.WORDS, "--epochs", EPOCHS, "--out", out, "--device", "cpu"]
        words += ["--checkpoint-steps", INTERVAL]
        port = free_port()
        started.append(Machine(port, *words))
        time.sleep(1)  # the first one hosts the rendezvous
        started.append(Machine(port, *words))
        wait_for_steps(notes, 2, 20, 0.0, started)
        lost_at = time.time()
        started.pop().lose()
        alone_at = wait_for_steps(notes, 1, 10, lost_at, started)
        came_at = time.time()
        started.append(Machine(port, *words))
        together_at = wait_for_steps(notes, 2, 10, came_at, started)
        (notes / "slow").unlink()
        codes = [machine.end() for machine in started]
    output = "\n".join(machine.watched.text for machine in started)
    assert codes == [0, 0], output
    return notes, out, output, {"alone": alone_at - lost_at, "together": together_at - came_at}


def test_a_machine_that_is_lost_and_comes_back_changes_nothing(
    tmp_path: Path, started: list[Machine]
) -> None:
    bars = make_bars(tmp_path / "bars")
    notes, out, output, seconds = two_one_two(tmp_path, bars, started)
    ranks = [row[4] for row in struck.steps_noted(notes)]
    assert [number for number, _ in groupby(ranks)] == [2, 1, 2]
    assert "was lost; the job was ended" in output
    repeats = struck.check_images(notes, EPOCHS)
    assert repeats <= 2 * INTERVAL
    words = ["--checkpoint-steps", INTERVAL]
    undisturbed = struck.run(tmp_path / "undisturbed", bars, [], EPOCHS, *words, launched=Launched)
    assert undisturbed[0] == 0, undisturbed[1].text
    difference = struck.difference(undisturbed[3], out)
    print(f"{seconds}, {repeats} steps repeated, largest difference {difference:g}")
    assert difference <= 1e-10
