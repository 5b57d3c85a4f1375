"""Compares runs on the images that all of them held out."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onsight.errors import OutputError
from onsight.evaluation.statistics import PairedCounts, difference_interval, holm, mcnemar, wilson
from onsight.files import user_path
from onsight.report.comparison.held_out import HeldOut, read_held_out
from onsight.report.comparison.notes import notes_on
from onsight.report.comparison.pairing import LeftOut
from onsight.report.comparison.pairing import pair as pair_images
from onsight.report.comparison.result import Comparison, Gap, RunResult
from onsight.report.comparison.settings import differing_settings
from onsight.words import listed

_STANDS_OUT = 0.05  # of the corrected p-value

Pairs = list[tuple[int, int]]


def compare(*runs: str | Path, against: str | Path | None = None) -> Comparison:
    """Compare finished runs, image by image, on what all of them held out.

    The run with the most images right is compared with each of the others: exact McNemar test,
    95% interval of the difference. Of several runs the p-values are corrected for every pair,
    because the best was found with the same images. against: one of the runs that was chosen
    without these images, to be compared with the others; p-values are corrected for its pairs
    alone. Raises UserError for folders that are no finished runs, different classes, or no common
    image.
    """
    paths = _checked([user_path(run) for run in runs])
    chosen = None if against is None else _place(user_path(against), paths)
    names = _names(paths)
    held_out = [read_held_out(path, name) for path, name in zip(paths, names, strict=True)]
    _check_classes(held_out)
    pairing = pair_images(held_out)
    if pairing.rows.shape[1] == 0:
        raise OutputError(_nothing_common(held_out, pairing.left_out))
    right = np.stack([run.right[rows] for run, rows in zip(held_out, pairing.rows, strict=True)])
    best = int(right.sum(axis=1).argmax()) if chosen is None else chosen
    pairs = [
        pair for pair in combinations(range(len(names)), 2) if chosen is None or chosen in pair
    ]
    gaps = _gaps(names, best, right, pairs)
    settings = differing_settings(held_out)
    results = [
        _run_result(run, left_out, correct)
        for run, left_out, correct in zip(held_out, pairing.left_out, right, strict=True)
    ]
    return Comparison(
        images=right.shape[1],
        runs=tuple(results),
        best=names[best],
        gaps=gaps,
        class_gaps=_class_gaps(
            names, best, right, held_out[0].labels[pairing.rows[0]], held_out, pairs
        ),
        settings=tuple(settings),
        notes=tuple(notes_on(held_out, pairing, settings)),
        held_out=held_out,
        pairing=pairing,
        pairs=len(pairs),
    )


def _place(path: Path, paths: Sequence[Path]) -> int:
    places = [one.resolve() for one in paths]
    if path.resolve() not in places:
        raise OutputError(f"{path} is to be compared with the others, but is not one of the runs")
    return places.index(path.resolve())


def _checked(paths: list[Path]) -> list[Path]:
    if len(paths) < 2:
        only = f" besides {paths[0]}" if paths else ""
        raise OutputError(
            f"give at least two run folders to compare{only}, as in "
            "`onsight compare runs/pets runs/pets-2`"
        )
    places = [path.resolve() for path in paths]
    twice = [str(path) for number, path in enumerate(paths) if places[number] in places[:number]]
    if twice:
        raise OutputError(f"{twice[0]} is given twice; give different run folders")
    return paths


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, or their whole paths where two have the same name."""
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _check_classes(runs: Sequence[HeldOut]) -> None:
    first, *others = runs
    for other in others:
        if other.classes == first.classes:
            continue
        parts = [
            f"only {run.name} has {listed([repr(name) for name in missing])}"
            for run, missing in (
                (first, sorted(set(first.classes) - set(other.classes))),
                (other, sorted(set(other.classes) - set(first.classes))),
            )
            if missing
        ]
        raise OutputError(
            f"{first.name} and {other.name} do not have the same classes: {'; '.join(parts)}. "
            "Only runs that choose among the same classes can be compared"
        )


def _nothing_common(runs: Sequence[HeldOut], left_out: Sequence[LeftOut]) -> str:
    if not all(map(len, runs)):
        empty = listed([run.name for run in runs if not len(run)])
        return f"there is nothing to compare: {empty} held out no images (--test-fraction)"
    message = f"no image was held out by {'both' if len(runs) == 2 else 'all'} runs"
    if any(one.seen for one in left_out):
        return (
            f"{message}: one was trained on what another held out. Train with the same "
            "--test-fraction, or compare the results of `onsight eval` on other images"
        )
    data = listed(list(dict.fromkeys(run.data for run in runs)))
    return f"{message} (they were trained on {data}). Compare runs on the same DATA"


def _run_result(run: HeldOut, left_out: LeftOut, right: NDArray[np.bool_]) -> RunResult:
    low, high = wilson(int(right.sum()), len(right))
    known = run.facts
    return RunResult(
        name=run.name,
        path=run.path,
        held_out=len(run),
        left_out=left_out,
        accuracy=float(right.mean()),
        accuracy_low=low,
        accuracy_high=high,
        seconds=known["seconds"],
        epochs=known["epochs"],
        parameters=known["parameters"],
    )


def _gaps(
    names: Sequence[str], best: int, right: NDArray[np.bool_], pairs: Pairs
) -> tuple[Gap, ...]:
    """The best run against each other; p-values corrected for these pairs. right: bool (R, n)."""
    p_values = [mcnemar(PairedCounts.of(right[one], right[two])) for one, two in pairs]
    corrected = dict(zip(pairs, holm(p_values), strict=True))
    return tuple(
        _gap((names[best], names[other]), right[best], right[other], corrected[min_max])
        for other in range(len(names))
        if other != best
        for min_max in [(min(best, other), max(best, other))]
    )


def _gap(
    names: tuple[str, str],
    first: NDArray[np.bool_],
    second: NDArray[np.bool_],
    corrected_p: float,
) -> Gap:
    """Both accuracies compared, whichever is higher. first, second: bool (n,)."""
    counts = PairedCounts.of(first, second)
    if counts.difference < 0:
        return _gap((names[1], names[0]), second, first, corrected_p)
    return Gap(*names, counts, *difference_interval(counts), mcnemar(counts), corrected_p)


def _class_gaps(
    names: Sequence[str],
    best: int,
    right: NDArray[np.bool_],
    labels: NDArray[np.int64],
    runs: Sequence[HeldOut],
    pairs: Pairs,
) -> tuple[tuple[str, Gap], ...]:
    """Classes that clearly differ, p-values corrected for every class of these pairs.

    right: bool (R, n); labels: int64 (n,).
    """
    cells = [
        ((one, two), number, right[:, labels == number])
        for one, two in pairs
        for number in np.unique(labels).tolist()
    ]
    p_values = [mcnemar(PairedCounts.of(part[one], part[two])) for (one, two), _, part in cells]
    return tuple(
        (runs[0].classes[number], _gap((names[one], names[two]), part[one], part[two], corrected))
        for ((one, two), number, part), corrected in zip(cells, holm(p_values), strict=True)
        if corrected < _STANDS_OUT and best in (one, two)
    )
