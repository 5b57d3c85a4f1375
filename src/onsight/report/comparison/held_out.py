"""What a finished run said about every image that it held out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsight.config import drop_retired
from onsight.data.fit import ImageFormat
from onsight.errors import OutputError
from onsight.models.file import FILE_NAME, load_model_file
from onsight.report.runfiles import Row, Said, read_csv, read_json

_COLUMNS = ("path", "label", "predicted", "probability")


@dataclass(frozen=True)
class HeldOut:
    """A finished run and its n held-out images, in the order of predictions.csv.

    digests: as in predictions.csv, empty in runs of earlier versions. labels, predicted: int64
    (n,) into classes, which are in alphabetical order; probability: float64 (n,) of the predicted
    class. seen: digests of the images that trained or selected the model. facts: results.json,
    None for what it lacks.
    """

    name: str
    path: Path
    split: str
    classes: tuple[str, ...]
    image_paths: Sequence[str]
    digests: Sequence[str]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    probability: NDArray[np.float64]
    seen: frozenset[str]
    format: ImageFormat
    data: str
    config: Mapping[str, Any]
    facts: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether each image was classified right: (n,)."""
        return np.equal(self.labels, self.predicted)


def read_held_out(path: Path, name: str) -> HeldOut:
    """Read a finished run's predictions. Raises OutputError, ModelError."""
    _check_finished(path)
    file = load_model_file(path)
    classes = tuple(sorted(file.classes))
    rows = _read_predictions(path / "predictions.csv")
    numbers = {known: number for number, known in enumerate(classes)}
    try:
        labels = np.array([numbers[row["label"]] for row in rows], np.int64)
        predicted = np.array([numbers[row["predicted"]] for row in rows], np.int64)
        probability = np.array([row["probability"] for row in rows], np.float64)
    except (KeyError, ValueError) as error:
        raise _damaged(path / "predictions.csv") from error
    return HeldOut(
        name=name,
        path=path,
        split=str(file.results.get("split", "")),
        classes=classes,
        image_paths=[row["path"] for row in rows],
        digests=[row["digest"] or "" for row in rows],
        labels=labels,
        predicted=predicted,
        probability=probability,
        seen=frozenset(_as_digests(file.seen)),
        format=file.preprocessing.format,
        data=str(file.provenance.get("data", "")),
        config=drop_retired(file.provenance.get("config") or {}),
        facts=read_json(path / "results.json") or Said(),
    )


def _check_finished(path: Path) -> None:
    """Raise OutputError, with what to do, unless the folder holds a finished run."""
    if not path.exists():
        raise OutputError(f"{path} does not exist; give the folders of finished runs")
    if not path.is_dir():
        raise OutputError(f"{path} is a file; give the run's folder, such as {path.parent}")
    if all((path / name).is_file() for name in (FILE_NAME, "predictions.csv")):
        return
    if any((path / name).exists() for name in ("config.toml", "checkpoints", "metrics.jsonl")):
        raise OutputError(
            f"{path} is a run that has not finished, so it has no predictions to compare. "
            f"Continue it: onsight train DATA --out {path} --resume"
        )
    raise OutputError(f"{path} is not a run folder: it has no {FILE_NAME} or predictions.csv")


def _read_predictions(path: Path) -> list[Row]:
    rows = read_csv(path)
    if rows is None or any(row[name] is None for row in rows for name in _COLUMNS):
        raise _damaged(path)
    return rows


def _damaged(path: Path) -> OutputError:
    return OutputError(
        f"{path} is damaged: it is not the table of predictions that the run wrote. "
        "Restore it, or train again"
    )


def _as_digests(keys: NDArray[np.int64]) -> list[str]:
    """Image keys (n,) as they are written in predictions.csv."""
    text = keys.astype(">i8").tobytes().hex()
    return [text[start : start + 16] for start in range(0, len(text), 16)]
