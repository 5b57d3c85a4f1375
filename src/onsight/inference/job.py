"""What the rows of a file depend on besides the images, by which a resumed run knows its own."""

import hashlib
from pathlib import Path

from onsight.inference.runner import Runner
from onsight.version import onsight_version

BATCH_SIZE = "batch size"
_OF_RUN = (  # which `report`, `compare` and `card` read
    "config.toml",
    "environment.json",
    "metrics.jsonl",
    "placement.json",
    "plan.json",
    "predictions.csv",
    "problems.csv",
    "results.json",
)


def describe_job(model: Path, runner: Runner) -> dict[str, object]:
    """The model, and what may change the last bits of its probabilities."""
    return {
        "model": _digest(model),
        "version of Onsight": onsight_version(),
        "device": str(runner.facts.get("device", "")),
        BATCH_SIZE: runner.at_once,
    }


def files_of_model(model: Path) -> list[Path]:
    """The model file, or the one in a run folder first, and the files that belong to it."""
    if model.is_dir():
        from onsight.models.file import FILE_NAME  # loads torch, as the model does

        return [model / FILE_NAME, *(model / name for name in _OF_RUN)]
    return [model, model.with_name(f"{model.name}.proof.json")]


def _digest(model: Path) -> str:
    with open(files_of_model(model)[0], "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
