"""Compare runs on the images that all of them held out."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onsight.errors import OutputError
from onsight.evaluation.statistics import (
    Z_95,
    PairedCounts,
    difference_interval,
    fold_interval_ratio,
    holm,
    mcnemar,
    wilson,
)
from onsight.files import user_path
from onsight.report.compare_pairs import (
    HeldOutPredictions,
    LeftOut,
    Pairing,
    pair_images,
    read_held_out,
)
from onsight.report.compare_result import (
    SIGNIFICANT,
    DifferingSetting,
    Gap,
    RunComparison,
    RunResult,
)
from onsight.text import joined, plural

_UNRELATED_SETTINGS = {"cache_folder", "log"}
_SPLIT_SETTINGS = ("validation_fraction", "test_fraction")


def compare(*runs: str | Path, against: str | Path | None = None) -> RunComparison:
    """Compare finished runs, image by image, on the images that all of them held out.

    The run with the most correct images is compared with each of the others: exact McNemar test,
    95% interval of the difference. With several runs, the p-values are corrected for every pair,
    because the best was found with the same images.

    Args:
        *runs: Two or more run folders.
        against: One of the runs, chosen without these images, to compare the others with instead
            of the best; p-values are corrected for its pairs alone.

    Raises:
        UserError: A folder is not a finished run, or the runs have different classes or no common
            image.
    """
    paths = _check_paths([user_path(run) for run in runs])
    chosen = None if against is None else _position(user_path(against), paths)
    names = _name_runs(paths)
    held_out = [read_held_out(path, name) for path, name in zip(paths, names, strict=True)]
    _check_classes(held_out)
    pairing = pair_images(held_out)
    if pairing.rows.shape[1] == 0:
        raise OutputError(_explain_nothing_common(held_out, pairing.left_out))
    correct = np.stack(
        [run.correct[rows] for run, rows in zip(held_out, pairing.rows, strict=True)]
    )
    best = int(correct.sum(axis=1).argmax()) if chosen is None else chosen
    pairs = [
        pair for pair in combinations(range(len(names)), 2) if chosen is None or chosen in pair
    ]
    settings = _differing_settings(held_out)
    classes, labels = held_out[0].classes, held_out[0].labels[pairing.rows[0]]
    by_class = {classes[label]: correct[:, labels == label] for label in np.unique(labels).tolist()}
    gaps = _gaps(names, best, by_class, pairs)
    return RunComparison(
        images=correct.shape[1],
        runs=tuple(map(_run_result, held_out, pairing.left_out, correct)),
        best=names[best],
        gaps=tuple(gap for _, gap in _gaps(names, best, {"": correct}, pairs)),
        class_gaps=tuple((name, gap) for name, gap in gaps if gap.corrected_p < SIGNIFICANT),
        settings=tuple(settings),
        notes=tuple(_notes(held_out, pairing, settings)),
        held_out=held_out,
        pairing=pairing,
        pairs=len(pairs),
    )


def _position(path: Path, paths: Sequence[Path]) -> int:
    resolved = [run_path.resolve() for run_path in paths]
    if path.resolve() not in resolved:
        raise OutputError(f"{path} is to be compared with the others, but is not one of the runs")
    return resolved.index(path.resolve())


def _check_paths(paths: list[Path]) -> list[Path]:
    if len(paths) < 2:
        needed = f"another run folder to compare {paths[0]} with" if paths else "two run folders"
        raise OutputError(f"give {needed}, as in `onsight compare runs/pets runs/pets-2`")
    resolved = [path.resolve() for path in paths]
    for index, path in enumerate(paths):
        if resolved[index] in resolved[:index]:
            raise OutputError(f"{path} is given twice; give different run folders")
    return paths


def _name_runs(paths: Sequence[Path]) -> list[str]:
    """Return the folders' names, or their whole paths where two have the same name."""
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _check_classes(runs: Sequence[HeldOutPredictions]) -> None:
    first, *others = runs
    for other in others:
        if other.classes == first.classes:
            continue
        parts = [
            f"only {run.name} has {joined([repr(name) for name in extra])}"
            for run, extra in (
                (first, sorted(set(first.classes) - set(other.classes))),
                (other, sorted(set(other.classes) - set(first.classes))),
            )
            if extra
        ]
        raise OutputError(
            f"{first.name} and {other.name} do not have the same classes: {'; '.join(parts)}. "
            "Only runs with the same classes can be compared"
        )


def _explain_nothing_common(runs: Sequence[HeldOutPredictions], left_out: Sequence[LeftOut]) -> str:
    if not all(map(len, runs)):
        empty = joined([run.name for run in runs if not len(run)])
        return f"there is nothing to compare: {empty} held out no images (--test-fraction)"
    message = f"no image was held out by {'both' if len(runs) == 2 else 'all'} runs"
    if any(counts.seen for counts in left_out):
        return (
            f"{message}: one was trained on what another held out. Train with the same "
            "--test-fraction, or compare the results of `onsight eval` on other images"
        )
    if len({run.format for run in runs}) > 1 and len({run.data for run in runs}) == 1:
        return (
            f"{message}: a JPEG that is decoded for another size or colour is another image, in "
            "another part of the split. With folders train and test, all hold out the same images"
        )
    data = joined(list(dict.fromkeys(run.data for run in runs)))
    return f"{message} (they were trained on {data}). Compare runs on the same DATA"


def _run_result(
    run: HeldOutPredictions, left_out: LeftOut, correct: NDArray[np.bool_]
) -> RunResult:
    z = Z_95 * (fold_interval_ratio(run.folds) if run.folds > 1 else 1.0)
    low, high = wilson(int(correct.sum()), len(correct), z)
    return RunResult(
        name=run.name,
        path=run.path,
        held_out=len(run),
        left_out=left_out,
        accuracy=float(correct.mean()),
        accuracy_low=low,
        accuracy_high=high,
        seconds=run.results["seconds"],
        epochs=run.results["epochs"],
        parameters=run.results["parameters"],
    )


def _gaps(
    names: Sequence[str],
    best: int,
    parts: Mapping[str, NDArray[np.bool_]],
    pairs: Sequence[tuple[int, int]],
) -> list[tuple[str, Gap]]:
    """Compare the best run with each other on named parts of the images.

    p-values are corrected for all of these pairs and parts. parts: (R, n) each.
    """
    tests = [(pair, name) for pair in pairs for name in parts]
    p_values = [
        mcnemar(PairedCounts.of(parts[name][first], parts[name][second]))
        for (first, second), name in tests
    ]
    return [
        (name, _gap(names, best, sum(pair) - best, parts[name], corrected))
        for (pair, name), corrected in zip(tests, holm(p_values), strict=True)
        if best in pair
    ]


def _gap(
    names: Sequence[str], first: int, second: int, correct: NDArray[np.bool_], corrected_p: float
) -> Gap:
    """Compare two runs and name the better one. correct: (R, n)."""
    counts = PairedCounts.of(correct[first], correct[second])
    if counts.difference < 0:
        return _gap(names, second, first, correct, corrected_p)
    interval = difference_interval(counts)
    return Gap(names[first], names[second], counts, *interval, mcnemar(counts), corrected_p)


# --- Settings and notes ---


def _differing_settings(runs: Sequence[HeldOutPredictions]) -> list[DifferingSetting]:
    """Return DATA and the fields of the configs that are not the same in all runs."""
    names = dict.fromkeys(name for run in runs for name in run.config)
    settings = [
        DifferingSetting("data", tuple(run.data for run in runs)),
        *(DifferingSetting(name, tuple(run.config.get(name) for run in runs)) for name in names),
    ]
    return [
        setting
        for setting in settings
        if setting.name not in _UNRELATED_SETTINGS
        and any(value != setting.values[0] for value in setting.values)
    ]


def _notes(
    runs: Sequence[HeldOutPredictions], pairing: Pairing, settings: Sequence[DifferingSetting]
) -> Iterator[str]:
    """Yield which images are not compared and why, and what biases the figures."""
    for run, left_out in zip(runs, pairing.left_out, strict=True):
        if sum(left_out):
            yield _left_out_note(run, left_out)
    if any(map(sum, pairing.left_out)):
        yield from _split_note(settings)
    selected = [run.name for run in runs if run.split == "validation"]
    learned = sum(runs[0].digests[row] in runs[0].seen for row in pairing.rows[0])
    if learned and not selected:
        yield (
            f"the weights that all runs started from have learned from {learned:,} of the images, "
            "so all accuracies are too high for new ones"
        )
    if selected:
        yield (
            f"the images of {joined(selected)} also chose which epoch to keep, so its "
            "accuracy is optimistic"
        )
    crossed = [run.name for run in runs if run.folds > 1]
    if crossed:
        yield (
            f"the predictions of {joined(crossed)} are cross-validated, by models trained on fewer "
            "images than the final one"
        )
    if not all(any(run.digests) for run in runs):
        yield "an older run has no digests, so images were paired by their paths"


def _left_out_note(run: HeldOutPredictions, left_out: LeftOut) -> str:
    parts = [
        (left_out.seen, "that another run or the weights it started from learned from"),
        (left_out.relabelled, "with another label in another run"),
        (left_out.absent, "not held out by every run"),
    ]
    reasons = joined([f"{count:,} {reason}" for count, reason in parts if count])
    images = plural(len(run), "held-out image")
    return f"of the {images} of {run.name}, {sum(left_out):,} are not compared: {reasons}"


def _split_note(settings: Sequence[DifferingSetting]) -> Iterator[str]:
    values = {setting.name: setting.values for setting in settings}
    parts = [
        f"{name.replace('_', ' ')} {' / '.join(map(str, values[name]))}"
        for name in _SPLIT_SETTINGS
        if name in values
    ]
    if parts:
        yield f"the runs split their images differently: {joined(parts)}"
