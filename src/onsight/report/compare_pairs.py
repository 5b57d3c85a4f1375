"""Read the held-out predictions of runs, and find the images that all of them held out."""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.config import drop_retired
from onsight.data.fit import ImageFormat
from onsight.errors import OutputError
from onsight.files import refuse_links, similar_names
from onsight.models.file import FILE_NAME, load_model_file
from onsight.report.run_files import Row, read_csv, read_results

_COLUMNS = ("path", "label", "predicted", "probability")
_UNMATCHED = -1


@dataclass(frozen=True)
class HeldOutPredictions:
    """A finished run and its n held-out images, in the order of predictions.csv."""

    name: str
    path: Path
    split: str
    classes: tuple[str, ...]  # sorted alphabetically
    image_paths: Sequence[str]
    digests: Sequence[str]  # as in predictions.csv; empty in runs of older versions
    labels: NDArray[np.int64]  # (n,) into classes
    predicted: NDArray[np.int64]  # (n,) into classes
    probability: NDArray[np.float64]  # (n,), probability of the predicted class
    seen: frozenset[str]  # digests of the images that trained or selected it or its weights
    folds: int  # how many models predicted the images, each those of its fold
    format: ImageFormat
    data: str
    config: Mapping[str, Any]
    results: Mapping[str, Any]  # results.json, None for missing keys

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether each image was classified correctly, (n,)."""
        return np.equal(self.labels, self.predicted)


class LeftOut(NamedTuple):
    """The number of a run's held-out images that are not compared, by reason."""

    seen: int  # another run, or the weights it started from, learned from them
    relabelled: int  # they have another label in another run
    absent: int  # another run does not have them, as far as its files show


class Pairing(NamedTuple):
    """The n images that all R runs held out."""

    rows: NDArray[np.int64]  # (R, n), the row of every common image in each run
    left_out: tuple[LeftOut, ...]  # one per run


def read_held_out(path: Path, name: str) -> HeldOutPredictions:
    """Read a finished run's predictions. Raises OutputError, ModelError."""
    _check_finished(path)
    refuse_links(path)
    file = load_model_file(path)
    config = file.provenance.get("config")
    classes = tuple(sorted(file.classes))
    rows = _read_predictions(path / "predictions.csv", file.results)
    indices = {class_name: index for index, class_name in enumerate(classes)}
    try:
        labels = np.array([indices[row["label"]] for row in rows], np.int64)
        predicted = np.array([indices[row["predicted"]] for row in rows], np.int64)
        probability = np.array([row["probability"] for row in rows], np.float64)
    except (KeyError, ValueError) as error:
        raise _damaged(path / "predictions.csv") from error
    if not ((probability >= 0) & (probability <= 1)).all():
        raise _damaged(path / "predictions.csv", "a probability is not from 0 to 1")
    digests = [row["digest"] or "" for row in rows]
    seen = frozenset(_digest_texts(file.seen))
    split = str(file.results.get("split", ""))
    if split == "folds":  # the final model learned from all images, those that predicted did not
        seen -= frozenset(digests)
    return HeldOutPredictions(
        name=name,
        path=path,
        split=split,
        classes=classes,
        image_paths=[row["path"] for row in rows],
        digests=digests,
        labels=labels,
        predicted=predicted,
        probability=probability,
        seen=seen,
        folds=len({row["fold"] for row in rows}) if split == "folds" else 1,
        format=file.format,
        data=str(file.provenance.get("data", "")),
        config=drop_retired(config if isinstance(config, dict) else {}),
        results=read_results(path),
    )


def pair_images(runs: Sequence[HeldOutPredictions]) -> Pairing:
    """Match the images of the runs by digest, or else by path, and count the others."""
    first, *others = runs
    rows = np.stack([np.arange(len(first)), *(_match(first, other) for other in others)])
    rows = rows[:, (rows != _UNMATCHED).all(axis=0)]
    unseen = [not _was_seen(runs, image_rows.tolist()) for image_rows in rows.T]
    rows = rows[:, np.array(unseen, bool)]
    left_out = [_count_left_out(run, runs, used) for run, used in zip(runs, rows, strict=True)]
    return Pairing(rows, tuple(left_out))


def _check_finished(path: Path) -> None:
    """Raise OutputError, with what to do, unless the folder contains a finished run."""
    if not path.exists():
        raise OutputError(
            f"{path} does not exist; give the folders of finished runs.{similar_names(path)}"
        )
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


def _read_predictions(path: Path, results: Mapping[str, Any]) -> list[Row]:
    rows = read_csv(path)
    if rows is None or any(row[name] is None for row in rows for name in _COLUMNS):
        raise _damaged(path)
    evaluated = results.get("images", len(rows))
    if len(rows) != evaluated:
        raise _damaged(path, f"it has {len(rows)} rows, but {evaluated} images were evaluated")
    return rows


def _damaged(
    path: Path, reason: str = "it is not the table of predictions that the run wrote"
) -> OutputError:
    return OutputError(f"{path} is damaged: {reason}. Restore it, or train again")


def _digest_texts(keys: NDArray[np.int64]) -> list[str]:
    """Return image keys (n,) as they are written in predictions.csv."""
    text = keys.astype(">i8").tobytes().hex()
    return [text[start : start + 16] for start in range(0, len(text), 16)]


def _match(first: HeldOutPredictions, other: HeldOutPredictions) -> NDArray[np.int64]:
    """Return the row of each of the first run's images in the other run, or -1, as (n,)."""
    rows = np.full(len(first), _UNMATCHED)
    digests = (_image_keys(run, range(len(run)), run.digests) for run in (first, other))
    unmatched, other_unmatched = _match_keys(rows, *digests)
    if _paths_identify(first, other):
        paths = _image_keys(first, unmatched, first.image_paths)
        _match_keys(rows, paths, _image_keys(other, other_unmatched, other.image_paths))
    return rows


def _paths_identify(first: HeldOutPredictions, other: HeldOutPredictions) -> bool:
    """Return whether equal paths mean equal images even if digests differ or are missing.

    A JPEG decoded for another image size has another digest.
    """
    if not (any(first.digests) and any(other.digests)):
        return True
    return first.data == other.data and first.format != other.format


def _image_keys(
    run: HeldOutPredictions, rows: Iterable[int], names: Sequence[str]
) -> list[tuple[int, Hashable]]:
    """Return rows with what identifies their image, by name and label; None matches nothing."""
    return [(row, (names[row], run.labels[row]) if names[row] else None) for row in rows]


def _match_keys(
    rows: NDArray[np.int64],
    first: Iterable[tuple[int, Hashable]],
    other: Iterable[tuple[int, Hashable]],
) -> tuple[list[int], list[int]]:
    """Match equal keys one to one, in order, into rows; return the unmatched rows of both sides."""
    waiting: dict[Hashable, deque[int]] = defaultdict(deque)
    for row, key in other:
        waiting[key].append(row)
    unmatched = []
    for row, key in first:
        if key is not None and waiting[key]:
            rows[row] = waiting[key].popleft()
        else:
            unmatched.append(row)
    return unmatched, sorted(chain.from_iterable(waiting.values()))


def _was_seen(runs: Sequence[HeldOutPredictions], rows: Sequence[int]) -> bool:
    """Return whether an image, under any of its digests, trained or selected some of the runs.

    Where the weights that all runs started from have learned from it, no run has an advantage.
    """
    digests = {run.digests[row] for run, row in zip(runs, rows, strict=True)}
    seen = [run.split != "validation" and bool(digests & run.seen) for run in runs]
    return any(seen) and not all(seen)


def _count_left_out(
    run: HeldOutPredictions, runs: Sequence[HeldOutPredictions], used: NDArray[np.int64]
) -> LeftOut:
    others = [other for other in runs if other is not run]
    learners = others if run.split == "validation" else runs  # its own weights may have, too
    labels = [_labels_by_digest(other) for other in others]
    counts = {"seen": 0, "relabelled": 0, "absent": 0}
    for row in sorted(set(range(len(run))) - set(used.tolist())):
        digest, label = run.digests[row], run.labels[row]
        if any(digest in learner.seen for learner in learners):
            counts["seen"] += 1
        elif any(label not in other_labels.get(digest, {label}) for other_labels in labels):
            counts["relabelled"] += 1
        else:
            counts["absent"] += 1
    return LeftOut(**counts)


def _labels_by_digest(run: HeldOutPredictions) -> dict[str, set[int]]:
    labels: dict[str, set[int]] = defaultdict(set)
    for digest, label in zip(run.digests, run.labels.tolist(), strict=True):
        if digest:
            labels[digest].add(label)
    return labels
