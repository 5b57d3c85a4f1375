"""Kills a run at random steps, resumes it, and compares it with an undisturbed run."""

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

from onsight.config import PLACES, make_config
from onsight.config_files import config_layers, read_config_file, save_config
from onsight.errors import ConfigError, OnsightError, UserError
from onsight.tensorfile import DamagedFile, read_tensors
from onsight.text import duration, plural
from onsight_explain.python_process import child_command

# A run of a few seconds; the user's own settings take precedence.
_DEFAULTS = {"model": "compact", "epochs": 2, "train_images": 512, "batch_size": 32, "folds": 1}


class Position(NamedTuple):
    """The next step of a run; epoch and step are counted from 0."""

    epoch: int
    step: int


@dataclass(frozen=True)
class VerifyResult:
    """The outcome of a verification."""

    equal: bool  # whether the two runs are the same bit for bit
    steps: int  # steps of each run
    kills: list[Position]  # position from which the run was resumed after each kill
    compared: dict[str, int]  # how many items of each kind were compared
    differences: list[str]  # sentences about what differs
    seconds: float  # duration of the verification
    # Holds both runs if they differ; None if they are equal, as they are deleted then.
    folder: str | None

    def facts(self) -> dict[str, Any]:
        """Return the result as JSON values, with epochs counted from 1."""
        kills = [{"epoch": kill.epoch + 1, "after_step": kill.step} for kill in self.kills]
        return {**asdict(self), "kills": kills}

    def lines(self) -> list[str]:
        """Return the lines to print."""
        kills = f"{plural(len(self.kills), 'kill')} in {plural(self.steps, 'step')}"
        if self.equal:
            counts = ", ".join(f"{count:,} {name}" for name, count in self.compared.items())
            return [f"equal bit for bit after {kills}: {counts} ({duration(self.seconds)})"]
        return [f"different after {kills}:", *self.differences, f"both runs: {self.folder}"]


def verify_resume(
    data: str,
    kills: int,
    report: Callable[[str], None],
    recipe: str | None = None,
    config_file: str | Path | None = None,
    **fields: Any,
) -> VerifyResult:
    """Train twice, killing and resuming the second run, and compare the two bit for bit.

    Args:
        data: The images, as for `onsight train`.
        kills: How many times to kill the second run.
        report: Called with a line of progress after the first run and after each kill.
        **fields: Config fields, as for `train`.

    Raises:
        ConfigError: Runs with these settings cannot be verified.
        OnsightError: A run failed.
    """
    started = time.monotonic()
    config = make_config(_DEFAULTS, *config_layers(recipe, config_file, fields))
    if config.budget:
        raise ConfigError(
            "runs with a --budget depend on the clock and cannot be compared: leave --budget out"
        )
    if config.model == "auto":
        raise ConfigError("only the training of one network can be verified: name it with --model")
    if config.checkpoints:
        raise ConfigError("both runs are in a temporary folder: leave --checkpoints out")
    folder = Path(tempfile.mkdtemp(prefix="onsight-verify-"))
    try:
        save_config(config, folder / "requested.toml")
        # Code to run, and places to write to, are accepted on the command line only.
        model = ["--model", config.model] if ":" in config.model else []
        named = {name: getattr(config, name) for name in PLACES if getattr(config, name)}
        places = [f"--{name.replace('_', '-')}={place}" for name, place in named.items()]
        same = [data, *model, *places]
        undisturbed, killed = folder / "undisturbed", folder / "killed"
        start = [*same, "--checkpoint-seconds", "0", "--config"]
        _train_to_end([*start, str(folder / "requested.toml"), "--out", str(undisturbed)])
        epochs, steps = _read_length(undisturbed)
        if epochs * steps < 2:
            raise ConfigError(
                "the run is killed between training steps, but with these settings it makes "
                f"only {epochs * steps}; use more epochs, and do not freeze the network"
            )
        report(f"undisturbed: {epochs} epochs of {steps} steps")
        # The second run uses the settings that the first one chose by measuring.
        start += [str(undisturbed / "config.toml"), "--out", str(killed)]
        resume = [*same, "--out", str(killed), "--resume"]
        targets = _draw_positions(kills, epochs, steps, config.seed)
        positions = _train_with_kills(start, resume, killed, targets, report)
        comparison = compare_folders(undisturbed, killed)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if not comparison.differences:
        shutil.rmtree(folder, ignore_errors=True)
    return VerifyResult(
        equal=not comparison.differences,
        steps=epochs * steps,
        kills=positions,
        compared=comparison.counts,
        differences=comparison.differences,
        seconds=time.monotonic() - started,
        folder=str(folder) if comparison.differences else None,
    )


def _read_length(run: Path) -> tuple[int, int]:
    """Return the number of epochs of a finished run and of steps in each."""
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    config = make_config(read_config_file(run / "config.toml"))
    images = sum(row["train_images"] for row in results["classes"])
    return results["epochs"], math.ceil(images / config.batch_size)


def _draw_positions(count: int, epochs: int, steps: int, seed: int) -> list[Position]:
    """Draw distinct positions of a run, in order; fewer than `count` if the run is too short."""
    choices = range(1, epochs * steps)
    drawn = random.Random(seed).sample(choices, min(count, len(choices)))
    return [Position(*divmod(step, steps)) for step in sorted(drawn)]


def _train_with_kills(
    start: list[str],
    resume: list[str],
    folder: Path,
    targets: list[Position],
    report: Callable[[str], None],
) -> list[Position]:
    """Train to the end, killing the run at each target and resuming it.

    Args:
        start: The arguments that start the run.
        resume: The arguments that resume it.

    Returns:
        The position from which the run was resumed after each kill. There are fewer than targets
        if the run ended sooner.
    """
    rng = random.Random(len(targets))
    positions: list[Position] = []
    arguments = start
    for target in targets:
        if not _train_until(arguments, folder, target, rng):
            return positions
        positions.append(_read_position(folder / "checkpoints" / "last.safetensors"))
        epoch, step = positions[-1]
        report(f"kill {len(positions)} of {len(targets)}: epoch {epoch + 1}, after step {step}")
        arguments = resume
    _train_to_end(arguments)
    return positions


_POLL_SECONDS = 0.005
# After the target's checkpoint appears, a random delay up to this long lets the kill hit the next
# steps and the writing of the next checkpoint, too.
_MAX_KILL_DELAY_SECONDS = 0.02


def _train_to_end(arguments: list[str]) -> None:
    """Run `onsight train`. Raises OnsightError with its error message if it fails."""
    with tempfile.TemporaryFile() as stderr:
        process = _start(arguments, stderr)
        try:
            exit_code = process.wait()
        finally:
            process.kill()
            process.wait()
        _check_exit_code(exit_code, stderr)


def _train_until(arguments: list[str], folder: Path, target: Position, rng: random.Random) -> bool:
    """Run `onsight train` and kill it soon after it reaches a position.

    Returns:
        Whether it was killed; False if it ended first.

    Raises:
        OnsightError: The run failed.
    """
    checkpoint = folder / "checkpoints" / "last.safetensors"
    with tempfile.TemporaryFile() as stderr:
        process = _start(arguments, stderr)
        try:
            while process.poll() is None and _read_position(checkpoint) < target:
                time.sleep(_POLL_SECONDS)
            time.sleep(rng.uniform(0, _MAX_KILL_DELAY_SECONDS))
        finally:
            process.kill()
            exit_code = process.wait()
        if exit_code != -signal.SIGKILL:
            _check_exit_code(exit_code, stderr)
    return exit_code == -signal.SIGKILL


def _read_position(checkpoint: Path) -> Position:
    """Return the position stored in a checkpoint; the start of the run if there is no file."""
    try:
        # With "pt", safetensors opens the file twice, and it may be replaced in between.
        with safe_open(checkpoint, "np") as file:
            progress: dict[str, Any] = json.loads(file.metadata()["facts"])["progress"]
    except FileNotFoundError:
        return Position(0, 0)
    return Position(progress["epoch"], progress["step"])


def _start(arguments: list[str], stderr: BinaryIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*child_command("onsight"), "train", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    )


def _check_exit_code(code: int, stderr: BinaryIO) -> None:
    """Raise OnsightError, or UserError for exit code 2, if a run failed."""
    if code:
        stderr.seek(0)
        text = stderr.read().decode(errors="replace")
        message = text.rpartition("error: ")[2].strip() or f"it ended with exit code {code}"
        error_type = UserError if code == 2 else OnsightError
        raise error_type(f"the run to be verified failed: {message}")


_TIMING_SUFFIXES = ("seconds", "per_second", "wait_share")  # keys that differ between any two runs


@dataclass(frozen=True)
class Comparison:
    """How many items of each kind were compared, and sentences about what differs."""

    counts: dict[str, int]
    differences: list[str]


def compare_folders(first: Path, second: Path) -> Comparison:
    """Compare weights, checkpoints, metrics and predictions of two finished runs."""
    comparison = Comparison({}, [])
    for name, kind in (
        ("model.safetensors", "tensors of the model"),
        ("checkpoints/last.safetensors", "tensors of the checkpoint, optimizer included"),
    ):
        _compare_tensors(first / name, second / name, kind, comparison)
    for name, kind in (("metrics.jsonl", "epochs"), ("predictions.csv", "predictions")):
        _compare_lines(first / name, second / name, kind, comparison)
    return comparison


def drop_timings(value: Any) -> Any:
    """Return a JSON value without timings and rates, at any depth."""
    if isinstance(value, dict):
        return {
            key: drop_timings(item)
            for key, item in value.items()
            if not key.endswith(_TIMING_SUFFIXES)
        }
    return [drop_timings(item) for item in value] if isinstance(value, list) else value


def _compare_tensors(first: Path, second: Path, kind: str, comparison: Comparison) -> None:
    try:
        first_tensors, first_facts = read_tensors(first)
        second_tensors, second_facts = read_tensors(second)
    except DamagedFile as error:
        comparison.differences.append(str(error))
        return
    comparison.counts[kind] = len(first_tensors)
    names = sorted(first_tensors.keys() | second_tensors.keys())
    unequal = [
        name for name in names if not _is_same(first_tensors.get(name), second_tensors.get(name))
    ]
    if unequal:
        comparison.differences.append(
            f"{first.name}: {len(unequal)} of {len(names)} tensors differ, first {unequal[0]}"
        )
    for key in ("progress", "optimizer", "scaler", "temperature"):
        if drop_timings(first_facts.get(key)) != drop_timings(second_facts.get(key)):
            comparison.differences.append(f"{first.name}: {key} differs")


def _is_same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return False
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    # Bytes, because NaN is not equal to itself and -0.0 is equal to 0.0.
    bits = (tensor.contiguous().flatten().view(torch.uint8) for tensor in (first, second))
    return torch.equal(*bits)


def _compare_lines(first: Path, second: Path, kind: str, comparison: Comparison) -> None:
    try:
        first_lines, second_lines = _read_lines(first), _read_lines(second)
    except OSError as error:
        comparison.differences.append(f"cannot read {error.filename}: {error.strerror}")
        return
    comparison.counts[kind] = len(first_lines)
    if len(first_lines) != len(second_lines):
        comparison.differences.append(
            f"{first.name}: {len(first_lines)} and {len(second_lines)} {kind}"
        )
        return
    pairs = enumerate(zip(first_lines, second_lines, strict=True), start=1)
    unequal = [number for number, (a, b) in pairs if a != b]
    if unequal:
        comparison.differences.append(
            f"{first.name}: {len(unequal)} of {len(first_lines)} {kind} differ, "
            f"first number {unequal[0]}"
        )


def _read_lines(path: Path) -> list[Any]:
    """Return the rows of a JSON Lines file without timings, or of a CSV file without header."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".jsonl":
        return [drop_timings(json.loads(line)) for line in lines]
    return lines[1:]
