"""The contenders for the best classifier in a given time, each as a process from start to end.

Nothing is kept from earlier runs: Onsight gets an empty cache. All contenders that fine-tune or
freeze a network start from the same published weights. Peers need a dataset with train/CLASS and
test/CLASS.
"""

import csv
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import run_json

from onsight.models.timm_nets import OFFLINE_MODEL
from onsight.training.run import read_results

HERE = Path(__file__).parent
AUTO = ("--model", "auto")
PUBLISHED = ("--model", OFFLINE_MODEL, "--pretrained")
ALTERNATIVES: dict[str, Sequence[str]] = {
    "sprint": ("--model", "sprint"),
    "compact": ("--model", "compact"),
    "head": (*PUBLISHED, "--freeze"),
    "tuned": (*PUBLISHED, "--no-freeze"),
}
ONSIGHT: dict[str, Sequence[str]] = {
    "auto": AUTO,
    **ALTERNATIVES,
    "auto-no-blend": (*AUTO, "--blend", "off"),
    "auto-no-layers": AUTO,  # run by its entry in PROGRAMS
    "auto-no-recalibration": (*AUTO, "--recalibrate-norm", "off"),
}
PROGRAMS = {"auto-no-layers": [HERE / "last_layer_heads.py"]}  # the others run onsight
PEERS = ("fastai", "torchvision", "sklearn", "ultralytics")
NAMES = (*ONSIGHT, *PEERS)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run on the images that it held out.

    seconds, and peak_bytes of its largest process, are measured from outside. correct: whether it
    classified each image correctly, by path within the dataset. members: the models that auto
    trained. error: the last line of stderr, if the run gave no result.
    """

    seconds: float
    peak_bytes: int
    correct: Mapping[str, bool] = field(default_factory=dict)
    members: Sequence[object] = ()
    error: str = ""


def run_contender(
    name: str, data: Path, budget: float, seed: int, settings: Sequence[str] = ()
) -> Outcome:
    """Run one contender on a dataset within a budget; settings: its further arguments."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        stdout, stderr, run = folder / "stdout", folder / "stderr", folder / "run"
        limit = 2 * budget + 120
        command = [*make_command(name, data, budget, run), "--seed", str(seed), *settings]
        done = run_json(
            *(sys.executable, HERE / "measured_process.py", str(limit), stdout, stderr),
            *(sys.executable, *command),
            # PYTHONDONTWRITEBYTECODE would make each process compile all modules.
            env={
                **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
                "ONSIGHT_CACHE": str(folder / "cache"),
            },
        )
        seconds, peak_bytes = done["seconds"], done["peak_bytes"]
        if done["code"] != 0:
            return Outcome(seconds, peak_bytes, error=describe_failure(done["code"], limit, stderr))
        if name in PEERS:
            correct = json.loads(stdout.read_text().splitlines()[-1])["correct"]
            return Outcome(seconds, peak_bytes, correct)
        members = read_results(run).get("members") or ()
        return Outcome(seconds, peak_bytes, read_correct(run / "predictions.csv"), members)


def make_command(name: str, data: Path, budget: float, run: Path) -> list[str | Path]:
    """A contender's arguments for Python; run: Onsight's run folder."""
    if name in PEERS:
        folders = (data / "train", data / "test")
        return [HERE / "peers" / f"auto_{name}.py", *folders, "--seconds", f"{budget:g}"]
    program = PROGRAMS.get(name, ["-m", "onsight"])
    return [*program, "train", data, "--budget", f"{budget:g}s", "--out", run, *ONSIGHT[name]]


def describe_failure(code: int | None, limit: float, stderr: Path) -> str:
    """Why a run gave no result; code: its exit code, or None if it timed out."""
    if code is None:
        return f"did not end within {limit:g} s"
    lines = stderr.read_text(errors="replace").strip().splitlines()
    return f"exit code {code}: {lines[-1] if lines else ''}"


def read_correct(predictions: Path) -> dict[str, bool]:
    """Whether each held-out image was classified correctly, by its path within the dataset."""
    with predictions.open(encoding="utf-8", newline="") as file:
        return {row["path"]: row["label"] == row["predicted"] for row in csv.DictReader(file)}
