"""A run is killed at random moments and resumed, and compared with one that was left alone."""

import json
import math
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onsight.config import make_config
from onsight.config_files import config_layers, save_config
from onsight.errors import ConfigError
from onsight.text import duration, plural
from onsight.training.verify_resume.killed import Position, position, train_to_end, train_until
from onsight.training.verify_resume.same import compare_folders

# Enough to train something in a moment; whatever the user says instead comes first.
_SHORT = {"model": "compact", "epochs": 2, "train_images": 512, "batch_size": 32, "folds": 1}


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
