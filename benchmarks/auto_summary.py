"""The tables of auto.py: accuracy, time and memory, and auto's lead, image by image."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from contenders import ALTERNATIVES, NAMES
from harness import Facts, table
from numpy.typing import NDArray

from onsight.evaluation.statistics import Z_95
from onsight.text import fixed_percent, plural

MAX_LOSS_POINTS = 1.0  # auto loses if it is further than this behind the best alternative
HEADER = [
    *("dataset", "contender", "accuracy", "images", "runs", "seconds", "memory"),
    "auto's lead in points (95% interval)",
]
MEANS_HEADER = [
    *("alternative", "cells", "with a failed run", "mean accuracy", "auto's mean lead in points"),
    "where no run failed",
]
NOTE = (
    "A cell is a dataset with a budget; its best alternative is in bold. Accuracy is the mean over "
    "the runs, which have different seeds; a failed run counts as 0%. Images are those held out "
    "in a run. Seconds, from process start to end, are the median and, in brackets, the longest; "
    "memory is the median of the largest process's peak. The lead is auto's accuracy minus the "
    "contender's with the same seeds on the same images. The runs are pooled; the interval treats "
    "the images, not the runs, as independent."
)
Runs = Mapping[int, Facts]  # the lines of a contender in a cell, by seed
Cell = Mapping[str, Runs]  # by contender


class Place(NamedTuple):
    """Where a cell is in the tables."""

    budget: float
    dataset: str

    def __str__(self) -> str:
        return f"{self.dataset} in {self.budget:g} s"


class Lead(NamedTuple):
    """How many points auto's accuracy is above another's, with a 95% interval."""

    points: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.points:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


def summarize(lines: Iterable[Facts]) -> list[str]:
    """A section in Markdown for each source that was measured, the oldest first."""
    sources: dict[str, list[Facts]] = defaultdict(list)
    for line in lines:
        sources[line["tree"]].append(line)
    sections = [summarize_source(tree, found) for tree, found in sources.items()]
    return [*chain.from_iterable(sections), NOTE]


def summarize_source(tree: str, lines: list[Facts]) -> list[str]:
    """The section of one source: a table for each budget, then a summary of all cells."""
    cells = group_cells(lines)
    section = [f"## The best classifier in a given time: source {tree[:8]}", ""]
    for circumstances in sorted({line["circumstances"] for line in lines}):
        section += [circumstances, ""]
    for budget in sorted({place.budget for place in cells}):
        rows = [
            row
            for place in sorted(cells)
            if place.budget == budget
            for row in make_rows(place.dataset, cells[place])
        ]
        section += [f"### {budget:g} seconds", "", *table(HEADER, rows), ""]
    return section + summarize_cells(cells)


def group_cells(lines: Iterable[Facts]) -> dict[Place, Cell]:
    cells: dict[Place, dict[str, dict[int, Facts]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        cell = cells[Place(line["budget"], line["dataset"])]
        cell[line["contender"]][line["seed"]] = line
    return {place: dict(cell) for place, cell in cells.items()}


# ---------------------------------------------------------------------------------------- numbers


def read_flags(line: Facts) -> NDArray[np.float64]:
    """Decode each image as 1 (right), 0 (wrong) or NaN (not held out)."""
    values = {"0": 0.0, "1": 1.0, "-": np.nan}
    return np.array([values[character] for character in line["correct"]])


def mean_accuracy(runs: Runs) -> float:
    """The mean over the runs; a failed run counts as 0."""
    counts = [(line["correct"].count("1"), line["images"]) for line in runs.values()]
    return statistics.mean(right / images if images else 0.0 for right, images in counts)


def compare(ours: Runs, theirs: Runs) -> Lead | None:
    """Our lead on the images that both held out with the same seed; None if there are none."""
    differences = [
        difference
        for seed in sorted(ours.keys() & theirs.keys())
        if (difference := subtract(ours[seed], theirs[seed])) is not None
    ]
    if not differences:
        return None
    stacked = np.stack(differences)  # (runs, images)
    sums, counts = np.nansum(stacked, axis=0), (~np.isnan(stacked)).sum(axis=0)
    if not counts.any():
        return None
    lead = sums.sum() / counts.sum()
    deviation = np.sqrt(np.square(sums - lead * counts).sum()) / counts.sum()
    return Lead(*(100 * float(end) for end in lead + Z_95 * deviation * np.array([0, -1, 1])))


def subtract(first: Facts, second: Facts) -> NDArray[np.float64] | None:
    """The difference of two runs for each image; None if both failed."""
    flags = [read_flags(line) for line in (first, second) if not line["error"]]
    if not flags:
        return None
    if len(flags) == 2:
        return flags[0] - flags[1]
    return -flags[0] if first["error"] else flags[0]


def find_best_alternative(cell: Cell) -> str | None:
    names = [name for name in ALTERNATIVES if name in cell]
    return max(names, key=lambda name: mean_accuracy(cell[name]), default=None)


def median_peak(runs: Runs) -> float:
    peaks: list[int] = [line["peak_bytes"] for line in runs.values()]
    return statistics.median(peaks)


def has_failed(runs: Runs) -> bool:
    return any(line["error"] for line in runs.values())


# ----------------------------------------------------------------------------------------- tables


def make_rows(dataset: str, cell: Cell) -> list[list[str]]:
    """A row for each contender of a cell."""
    best = find_best_alternative(cell)
    rows = []
    for name in (name for name in NAMES if name in cell):
        lead = compare(cell["auto"], cell[name]) if "auto" in cell and name != "auto" else None
        title = f"**{name}**" if name == best else name
        rows.append([dataset, title, *describe_runs(cell[name]), str(lead or "")])
    return rows


def describe_runs(runs: Runs) -> list[str]:
    """The columns from accuracy to memory."""
    failed = [line["error"] for line in runs.values() if line["error"]]
    accuracy = fixed_percent(mean_accuracy(runs))
    if failed:
        accuracy += f"; failed, {len(failed)} of {len(runs)}: {failed[-1].replace('|', '/')}"
    images = max(line["images"] for line in runs.values())
    seconds = [line["seconds"] for line in runs.values()]
    return [
        accuracy,
        f"{images:,}",
        str(len(runs)),
        f"{statistics.median(seconds):.1f} ({max(seconds):.1f})",
        f"{median_peak(runs) / 2**20:,.0f} MB",
    ]


def summarize_cells(cells: Mapping[Place, Cell]) -> list[str]:
    """Summarize the cells that have both auto and an alternative."""
    compared = {
        place: cell
        for place, cell in cells.items()
        if "auto" in cell and find_best_alternative(cell) is not None
    }
    if not compared:
        return []
    sentences = [describe_losses(compared), describe_time(compared), describe_memory(compared)]
    return [
        *(f"- {sentence}" for sentence in sentences),
        "",
        *table(MEANS_HEADER, compare_means(compared)),
        "",
    ]


def describe_losses(cells: Mapping[Place, Cell]) -> str:
    losses = []
    for place, cell in sorted(cells.items()):
        best = find_best_alternative(cell)
        lead = compare(cell["auto"], cell[best]) if best else None
        if lead and lead.points < -MAX_LOSS_POINTS:
            losses.append(f"{place} ({best}, {lead})")
    found = plural(len(losses), "cell") + f" of {len(cells)}"
    listed = ": " + "; ".join(losses) if losses else ""
    return f"auto loses more than one point to the best alternative in {found}{listed}."


def describe_time(cells: Mapping[Place, Cell]) -> str:
    shares = [
        line["seconds"] / place.budget
        for place, cell in cells.items()
        for line in cell["auto"].values()
        if not line["error"]
    ]
    if not shares:
        return "auto failed in every run."
    least, middle, most = min(shares), statistics.median(shares), max(shares)
    late = sum(share > 1 for share in shares)
    return (
        f"auto used {100 * least:.0f}% to {100 * most:.0f}% of its budget, {100 * middle:.0f}% in "
        f"the median; {late} of {len(shares)} runs took longer."
    )


def describe_memory(cells: Mapping[Place, Cell]) -> str:
    ratios = {
        place: median_peak(cell["auto"])
        / max(median_peak(cell[name]) for name in ALTERNATIVES if name in cell)
        for place, cell in cells.items()
    }
    worst = max(ratios, key=ratios.__getitem__)
    return (
        f"auto's peak memory is {statistics.median(ratios.values()):.2f} times that of the largest "
        f"alternative in the cell's median, {ratios[worst]:.2f} at most ({worst})."
    )


def compare_means(cells: Mapping[Place, Cell]) -> list[list[str]]:
    """A row for each alternative over all of its cells, the one closest to auto first."""
    rows: list[tuple[float, list[str]]] = []
    for name in ALTERNATIVES:
        shared = [cell for cell in cells.values() if name in cell]
        if not shared:
            continue
        sound = [cell for cell in shared if not has_failed(cell[name])]
        lead = mean_lead(shared, name)
        accuracy = statistics.mean(mean_accuracy(cell[name]) for cell in shared)
        counts = [str(len(shared)), str(len(shared) - len(sound))]
        columns = [name, *counts, fixed_percent(accuracy), f"{lead:+.1f}"]
        rows.append((lead, [*columns, f"{mean_lead(sound, name):+.1f}" if sound else ""]))
    return [row for _, row in sorted(rows)]


def mean_lead(cells: Sequence[Cell], name: str) -> float:
    """The mean, over cells, of auto's accuracy less an alternative's, in points."""
    leads = (mean_accuracy(cell["auto"]) - mean_accuracy(cell[name]) for cell in cells)
    return 100 * statistics.mean(leads)
