"""A run in a process of its own, killed in the middle of training, as a power cut would."""

import json
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from safetensors import safe_open

from onsight.errors import OnsightError, UserError
from onsight_explain.python_process import child_command

_LOOK_SECONDS = 0.005
_LONGEST_WAIT_SECONDS = 0.02  # between seeing a checkpoint and killing: another may be under way


class Position(NamedTuple):
    """Where a run goes on: the next step of an epoch, both from 0."""

    epoch: int
    step: int


def train_to_end(words: list[str]) -> None:
    """Run `onsight train`. Raises OnsightError with what it said if it failed."""
    with tempfile.TemporaryFile() as said:
        process = _start(words, said)
        try:
            ended = process.wait()
        finally:
            process.kill()
            process.wait()
        _refuse_failure(ended, said)


def train_until(words: list[str], folder: Path, target: Position, drawn: random.Random) -> bool:
    """Run `onsight train` and kill it soon after it has reached a position.

    Returns False if it ended before. Raises OnsightError if it failed.
    """
    checkpoint = folder / "checkpoints" / "last.safetensors"
    with tempfile.TemporaryFile() as said:
        process = _start(words, said)
        try:
            while process.poll() is None and position(checkpoint) < target:
                time.sleep(_LOOK_SECONDS)
            time.sleep(drawn.uniform(0, _LONGEST_WAIT_SECONDS))
        finally:
            process.kill()
            ended = process.wait()
        if ended != -signal.SIGKILL:
            _refuse_failure(ended, said)
    return ended == -signal.SIGKILL


def position(checkpoint: Path) -> Position:
    """Where a checkpoint says that its run goes on; the beginning if there is none yet."""
    try:
        # For torch it would be opened twice, and another one may take its place in between.
        with safe_open(checkpoint, "np") as file:
            facts: dict[str, Any] = json.loads(file.metadata()["facts"])["progress"]
    except FileNotFoundError:
        return Position(0, 0)
    return Position(facts["epoch"], facts["step"])


def _start(words: list[str], said: BinaryIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*child_command("onsight"), "train", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
    )


def _refuse_failure(code: int, said: BinaryIO) -> None:
    if code:
        said.seek(0)
        text = said.read().decode(errors="replace")
        words = text.rpartition("error: ")[2].strip() or f"it ended with exit code {code}"
        kind = UserError if code == 2 else OnsightError
        raise kind(f"the run that was to be verified failed: {words}")
