"""How a run compares with the one before it on the same DATA, image by image."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from onsight.errors import OnsightError
from onsight.models.file import FILE_NAME
from onsight.report.comparison import words
from onsight.report.comparison.compare import compare
from onsight.report.runfiles import read_json


@dataclass(frozen=True)
class Earlier:
    """The run before and what became better or worse since; command: shows the images."""

    name: str
    finished: str
    images: int
    sentence: str
    counts: str
    class_lines: list[str]
    settings: str
    notes: list[str]
    command: str


def compared_with_earlier(run: Path) -> Earlier | None:
    """A run against the newest that finished before it beside it, with the same DATA.

    None if there is no such run, or if the two held out no common images.
    """
    data = _data_of(run)
    before = next((one for one in _finished_before(run) if _data_of(one) == data), None)
    if data is None or before is None:
        return None
    try:
        found = compare(before, run)
    except OnsightError:  # other classes, no common images, a damaged file
        return None
    (gap,) = found.gaps
    return Earlier(
        name=before.name,
        finished=f"{datetime.fromtimestamp(_finish_time(before)):%Y-%m-%d %H:%M}",
        images=found.images,
        sentence=words.gap_sentence(found, gap),
        counts=words.gap_counts(gap),
        class_lines=[words.class_line(name, gap) for name, gap in found.class_gaps],
        settings=words.settings_line(found),
        notes=list(found.notes),
        command=shlex.join(["onsight", "compare", str(before), str(run)]),
    )


def _data_of(run: Path) -> object:
    results = read_json(run / "results.json")
    return results.get("data") if isinstance(results, dict) else None


def _finished_before(run: Path) -> Iterator[Path]:
    """The runs in the same folder that finished before this one, newest first."""
    folder = run.parent if run.name else run.resolve().parent  # the name of . is empty
    beside = [path.parent for path in folder.glob(f"*/{FILE_NAME}")]
    times = {path: _finish_time(path) for path in beside}
    own = _finish_time(run)
    yield from sorted((path for path in beside if times[path] < own), key=lambda path: -times[path])


def _finish_time(run: Path) -> float:
    """When the model file was written, in seconds; writing a report again does not change it."""
    try:
        return (run / FILE_NAME).stat().st_mtime
    except OSError:
        return 0.0
