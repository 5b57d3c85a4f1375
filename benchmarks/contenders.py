"""The contenders for the best classifier in a given time, each as a process from start to end.

Each takes a folder with train/CLASS and test/CLASS. Nothing is kept from an earlier run: Onsight
gets an empty cache. All that fine-tune or freeze start from the same published weights.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onsight.training.run import read_results

PUBLISHED = ["--model", "tf_efficientnet_lite0", "--pretrained"]
ONSIGHT = {
    "auto": ["--model", "auto"],
    "compact": ["--model", "compact"],
    "sprint": ["--model", "sprint"],
    "frozen": [*PUBLISHED, "--freeze"],
    "fine-tuned": PUBLISHED,
}
PEERS = {
    "twenty-lines": "minute_twenty_lines.py",
    "fastai": "minute_fastai.py",
    "torchvision": "minute_torchvision.py",
}
NAMES = [*ONSIGHT, *PEERS]
TITLES = {
    "auto": "Onsight, `--model auto`",
    "compact": "Onsight, `compact` alone",
    "sprint": "Onsight, `sprint` alone",
    "frozen": "Onsight, published weights frozen",
    "fine-tuned": "Onsight, published weights fine-tuned",
    "twenty-lines": "frozen features, scikit-learn",
    "fastai": "fastai, `fine_tune`",
    "torchvision": "loop like torchvision's references",
}
PLACE = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class Outcome:
    """What a run achieved on the test images; seconds are measured from outside.

    failed: the last line of its complaint, if it gave no result. facts: whatever else it told.
    """

    right: int
    n: int
    seconds: float
    failed: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        return self.right / self.n if self.n else 0.0


def run_contender(
    name: str, folder: Path, seconds: float, words: Sequence[str] = (), seed: int = 0
) -> Outcome:
    """Run one contender on a folder within a budget; words: further arguments, its settings."""
    with tempfile.TemporaryDirectory() as made:
        command = _command(name, folder, seconds, Path(made) / "run")
        command += ["--seed", seed, *words]
        environment = os.environ | {"ONSIGHT_CACHE": str(Path(made) / "cache")}
        begun = time.perf_counter()
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        took = time.perf_counter() - begun
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"code {done.returncode}"]
            return Outcome(0, 0, took, failed=lines[-1])
        if name in ONSIGHT:
            return _onsight_outcome(Path(made) / "run", took)
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    return Outcome(facts["right"], facts["n"], took, facts=facts)


def _command(name: str, folder: Path, seconds: float, out: Path) -> list[object]:
    if name in ONSIGHT:
        budget = ["--budget", f"{seconds:g}s", "--out", out]
        return [sys.executable, "-m", "onsight", "train", folder, *budget, *ONSIGHT[name]]
    parts = [folder / "train", folder / "test", "--seconds", seconds]
    return [sys.executable, PLACE / PEERS[name], *parts]


def _onsight_outcome(run: Path, took: float) -> Outcome:
    results = read_results(run)
    kept = ("model", "epochs", "used", "problems", "balanced_accuracy", "confused_pairs")
    facts = {name: value for name, value in results.items() if name in kept}
    images = results["images"]
    return Outcome(round((results["accuracy"] or 0) * images), images, took, facts=facts)


def warm_up(folder: Path) -> None:
    """Read every file once, so that none has to wait for the disk more than another."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.read_bytes()
