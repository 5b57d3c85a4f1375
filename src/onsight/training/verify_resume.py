"""A run is killed at random moments and resumed, and compared with one that was left alone."""

import json
import math
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from onsight.config import make_config
from onsight.config_files import config_layers, save_config
from onsight.errors import ConfigError, OnsightError, UserError
from onsight.tensorfile import DamagedFile, read_tensors
from onsight.text import duration, plural
from onsight_explain.python_process import child_command

# Enough to train something in a moment; whatever the user says instead comes first.
_SHORT = {"model": "compact", "epochs": 2, "train_images": 512, "batch_size": 32, "folds": 1}


class Position(NamedTuple):
    """Where a run goes on: the next step of an epoch, both from 0."""

    epoch: int
    step: int


@dataclass(frozen=True)
class Verified:
    """What came of it. kills: where the run stood each time; compared: how many of what.

    folder: both runs, which are kept if they differ.
    """

    equal: bool
    steps: int
    kills: list[Position]
    compared: dict[str, int]
    differences: list[str]
    seconds: float
    folder: str | None

    def facts(self) -> dict[str, Any]:
        """The same as JSON, epochs counted from 1."""
        kills = [{"epoch": one.epoch + 1, "after_step": one.step} for one in self.kills]
        return {**asdict(self), "kills": kills}

    def lines(self) -> list[str]:
        """The same for people."""
        again = f"{plural(len(self.kills), 'kill')} in {plural(self.steps, 'step')}"
        if self.equal:
            what = ", ".join(f"{count:,} {name}" for name, count in self.compared.items())
            return [f"equal bit for bit after {again}: {what} ({duration(self.seconds)})"]
        return [f"different after {again}:", *self.differences, f"both runs: {self.folder}"]


def verify_resume(
    data: str,
    kills: int,
    tell: Callable[[str], None],
    recipe: str | None = None,
    config_file: str | Path | None = None,
    **fields: Any,
) -> Verified:
    """Train twice on DATA, the second time killed and resumed, and compare every bit.

    Fields of the config may be given as to `train`. Raises OnsightError if a run fails.
    """
    begun = time.monotonic()
    config = make_config(_SHORT, *config_layers(recipe, config_file, fields))
    if config.budget:
        raise ConfigError(
            "what a run with a --budget does depends on the clock: leave --budget out"
        )
    folder = Path(tempfile.mkdtemp(prefix="onsight-verify-"))
    try:
        save_config(config, folder / "asked.toml")
        named = ["--model", config.model] if ":" in config.model else []
        words = [data, *named, "--checkpoint-seconds", "0"]
        whole, killed = folder / "undisturbed", folder / "killed"
        train_to_end([*words, "--config", str(folder / "asked.toml"), "--out", str(whole)])
        epochs, steps = _length(whole)
        tell(f"undisturbed: {epochs} epochs of {steps} steps")
        # What the first run chose by measuring is settled for the second one.
        start = [*words, "--config", str(whole / "config.toml"), "--out", str(killed)]
        stood = _kill_often(start, killed, _draw(kills, epochs, steps, config.seed), tell)
        compared = compare_folders(whole, killed)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if not compared.differences:
        shutil.rmtree(folder, ignore_errors=True)
    return Verified(
        equal=not compared.differences,
        steps=epochs * steps,
        kills=stood,
        compared=compared.counts,
        differences=compared.differences,
        seconds=time.monotonic() - begun,
        folder=str(folder) if compared.differences else None,
    )


def _length(run: Path) -> tuple[int, int]:
    """(epochs, steps in each) of a finished run."""
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    config = make_config(_read_config(run))
    images = sum(row["train_images"] for row in results["classes"])
    return results["epochs"], math.ceil(images / config.batch_size)


def _read_config(run: Path) -> dict[str, Any]:
    return config_layers(None, run / "config.toml", {})[1]


def _draw(kills: int, epochs: int, steps: int, seed: int) -> list[Position]:
    """That many different positions of a run, in order; fewer if it is too short."""
    places = range(1, epochs * steps)
    drawn = random.Random(seed).sample(places, min(kills, len(places)))
    return [Position(*divmod(place, steps)) for place in sorted(drawn)]


def _kill_often(
    start: list[str], folder: Path, targets: list[Position], tell: Callable[[str], None]
) -> list[Position]:
    """Run, kill and resume up to the end; where the run stood each time."""
    drawn = random.Random(len(targets))
    stood: list[Position] = []
    words = start
    for target in targets:
        if not train_until(words, folder, target, drawn):
            return stood  # it was quicker than expected
        stood.append(position(folder / "checkpoints" / "last.safetensors"))
        epoch, step = stood[-1]
        tell(f"kill {len(stood)} of {len(targets)}: epoch {epoch + 1}, after step {step}")
        words = [start[0], "--out", str(folder), "--resume", *_named(start)]
    train_to_end(words)
    return stood


def _named(words: list[str]) -> list[str]:
    """--model, which a resumed run must be told again if it names code."""
    return words[1:3] if words[1] == "--model" else []


_LOOK_SECONDS = 0.005
_LONGEST_WAIT_SECONDS = 0.02  # between seeing a checkpoint and killing: another may be under way


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


_TIMES = ("seconds", "per_second", "wait_share")  # in the names of what differs in any two runs


@dataclass(frozen=True)
class Compared:
    """What was compared, as (what, how many), and in words what differs."""

    counts: dict[str, int]
    differences: list[str]


def compare_folders(one: Path, other: Path) -> Compared:
    """Compare weights, checkpoint, metrics and predictions of two finished runs."""
    found = Compared({}, [])
    for name, what in (
        ("model.safetensors", "tensors of the model"),
        ("checkpoints/last.safetensors", "tensors of the checkpoint, optimizer included"),
    ):
        _compare_tensors(one / name, other / name, what, found)
    for name, what in (("metrics.jsonl", "epochs"), ("predictions.csv", "predictions")):
        _compare_lines(one / name, other / name, what, found)
    return found


def without_times(value: Any) -> Any:
    """A value of JSON without the entries that say how long something took."""
    if isinstance(value, dict):
        kept = {name: one for name, one in value.items() if not name.endswith(_TIMES)}
        return {name: without_times(one) for name, one in kept.items()}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def _compare_tensors(one: Path, other: Path, what: str, found: Compared) -> None:
    try:
        first, facts = read_tensors(one)
        second, others = read_tensors(other)
    except DamagedFile as error:
        found.differences.append(str(error))
        return
    found.counts[what] = len(first)
    names = sorted(first.keys() | second.keys())
    unequal = [name for name in names if not _is_same(first.get(name), second.get(name))]
    if unequal:
        found.differences.append(
            f"{one.name}: {len(unequal)} of {len(names)} tensors differ, first {unequal[0]}"
        )
    for key in ("progress", "optimizer", "scaler", "temperature"):
        if without_times(facts.get(key)) != without_times(others.get(key)):
            found.differences.append(f"{one.name}: {key} differs")


def _is_same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    bits = (tensor.contiguous().flatten().view(torch.uint8) for tensor in (one, other))
    return torch.equal(*bits)


def _compare_lines(one: Path, other: Path, what: str, found: Compared) -> None:
    try:
        first, second = (_lines(path) for path in (one, other))
    except OSError as error:
        found.differences.append(f"cannot read {error.filename}: {error.strerror}")
        return
    found.counts[what] = len(first)
    if len(first) != len(second):
        found.differences.append(f"{one.name}: {len(first)} and {len(second)} {what}")
        return
    unequal = [number for number, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    if unequal:
        found.differences.append(
            f"{one.name}: {len(unequal)} of {len(first)} {what} differ, first number "
            f"{unequal[0] + 1}"
        )


def _lines(path: Path) -> list[Any]:
    """The rows of a file of JSON lines, without times, or of a table, without its header."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".jsonl":
        return [without_times(json.loads(line)) for line in lines]
    return lines[1:]
