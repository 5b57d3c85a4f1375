"""A file of rows that gets its name once it is complete, and can be continued until then.

Rows are written to a hidden file next to it (rows_path). A second hidden file (job_path) describes
the job that they belong to. It is written after the file of rows was created, and removed after
that was renamed, so the files that exist show the state of a run:

    rows and job    interrupted: it can be resumed
    rows only       not started: killed before it wrote the job
    job only        complete, if the file exists: killed right after the rename
    neither         not started, or complete

Files with these names that Onsight did not write are never changed.
"""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from os.path import exists  # unlike Path.exists, it accepts any name
from pathlib import Path
from typing import Any, BinaryIO

from onsight.errors import DataError, OutputError
from onsight.files import disk_errors, move_into_place, safe_cell, write_json
from onsight.inference.images import Input, is_batch_full
from onsight.inference.predictor import Prediction, list_model_files
from onsight.inference.row_formats import ResumableFormat, RowCounts
from onsight.inference.runner import Runner
from onsight.inference.sinks import Sink
from onsight.installation import onsight_version
from onsight.text import plural
from onsight.untrusted import read_json

_BATCH_SIZE_KEY = "batch size"

# A power cut loses at most the rows of this many seconds; a killed process loses none.
_SYNC_SECONDS = 5.0


def rows_path(path: Path) -> Path:
    """Return the hidden file that collects the rows until they are complete."""
    return path.with_name(f".onsight-rows-{path.name}")


def job_path(path: Path) -> Path:
    """Return the hidden file that describes the job of an incomplete file."""
    return path.with_name(f".onsight-job-{path.name}")


def describe_job(model: Path, member: str, runner: Runner) -> dict[str, object]:
    """Return the model, and everything that could change a bit of its probabilities.

    Rows of two runs can be in one file only if these are equal.
    """
    with open(list_model_files(model)[0], "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    return {
        "model": digest,
        "member": member,
        "version of Onsight": onsight_version(),
        "device": str(runner.facts.get("device", "")),
        _BATCH_SIZE_KEY: runner.batch_size,
    }


def discard(path: Path) -> None:
    """Remove the rows of a run that can never be completed."""
    rows_path(path).unlink(missing_ok=True)
    job_path(path).unlink(missing_ok=True)


def check_not_interrupted(path: Path) -> None:
    """Raise OutputError if there are rows of an interrupted run, which would be lost."""
    if exists(rows_path(path)) and exists(job_path(path)):
        raise OutputError(
            f"{rows_path(path)} has the rows of an interrupted run: add --resume to continue it, "
            "or delete the file to start over"
        )


def check_resumable(path: Path) -> None:
    """Raise OutputError for a file that exists and is not part of an interrupted run."""
    if exists(path) and not exists(rows_path(path)) and not exists(job_path(path)):
        raise OutputError(
            f"{path} is complete, so there is nothing to resume; remove --resume to write it again"
        )


def clear_completed_job(path: Path, job: Mapping[str, Any]) -> bool:
    """Remove the job of a run that was killed right after it renamed the complete file.

    Return whether there was one. Raises OutputError if it was another job.
    """
    if exists(rows_path(path)) or not exists(path):
        return False
    _check_same_job(path, job)
    job_path(path).unlink()
    return True


class ResumableFile(Sink):
    """Rows in a file that an interrupted run leaves ready to be continued."""

    def __init__(self, path: Path, row_format: ResumableFormat, job: Mapping[str, Any]) -> None:
        self._path, self._rows_path, self._job_path = path, rows_path(path), job_path(path)
        self._format = row_format
        self._job = job  # has to be equal in the run that continues the file
        self._synced = time.monotonic()
        is_started = exists(self._job_path)
        if is_started:
            _read_job(path)
        with disk_errors(self._rows_path):
            self._file = _open_locked(self._rows_path)
            start = self._file.read(len(row_format.head) + 1)
            self._file.seek(0)
        # Without a job, the file of rows may be somebody else's: it must begin like one of ours.
        if not is_started and not row_format.head.startswith(start):
            self._file.close()
            raise _make_foreign_file_error(self._rows_path)

    def start(self) -> None:
        """Start a new file, without rows."""
        with disk_errors(self._rows_path):
            self._file.truncate(0)
            self._file.seek(0)
            self._job_path.unlink(missing_ok=True)
            self._file.write(self._format.head)
            self._sync()
        write_json(self._job_path, self._job)

    def resume(self, inputs: Iterator[Input]) -> tuple[Iterator[Input], RowCounts]:
        """Skip the inputs that have rows; return the remaining inputs and the counts so far.

        Rows after the last full batch are cut off. The remaining batches are then the same as in
        an uninterrupted run, and so is every bit of their probabilities. Raises OutputError for
        rows of another job.
        """
        counts = RowCounts()
        if exists(self._job_path):
            _check_same_job(self._path, self._job)
        head = self._format.head
        if not exists(self._job_path) or self._file.read(len(head)) != head:
            self.start()
            return inputs, counts
        end, batch_size = self._file.tell(), self._job[_BATCH_SIZE_KEY]
        batch: list[tuple[Input, Prediction]] = []
        usable = 0
        for row, row_end in self._format.read(self._file):
            image = next(inputs, None)
            # A path may have been put after ./ in its row.
            if image is None or safe_cell("path", image.name) != safe_cell("path", row.path):
                raise self._make_input_error(counts.images + len(batch) + 1, row.path, image)
            batch.append((image, row))
            usable += row.problem is None
            if is_batch_full(usable, len(batch), batch_size):
                counts.add([row for _, row in batch])
                end, batch, usable = row_end, [], 0
        with disk_errors(self._rows_path):
            self._file.truncate(end)
            self._file.seek(end)
        return chain([image for image, _ in batch], inputs), counts

    def write(self, rows: Sequence[Prediction]) -> None:
        """Write more rows. They survive a killed process, and after some seconds a power cut."""
        with disk_errors(self._rows_path):
            self._file.write(self._format.rows(rows))
            self._file.flush()
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                self._sync()

    def finish(self, counts: RowCounts) -> None:
        """Rename the complete file and remove its job."""
        with disk_errors(self._path):
            move_into_place(self._file, self._rows_path, self._path)
            self._job_path.unlink()

    def close(self) -> None:
        """Close the file, and remove it if it has no rows."""
        with suppress(OSError):  # a failed write has been reported
            self._file.flush()
        has_rows = os.fstat(self._file.fileno()).st_size > len(self._format.head)
        with suppress(OSError):
            self._file.close()
        if not has_rows:
            discard(self._path)

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def _make_input_error(self, number: int, path: str, image: Input | None) -> OutputError:
        now = f"now it is {image.name}" if image else f"now there are {plural(number - 1, 'input')}"
        return OutputError(
            f"{self._rows_path} does not match the inputs: number {number:,} was {path}, {now}. "
            "Use the same inputs in the same order, or delete the file to start over"
        )


def _check_same_job(path: Path, job: Mapping[str, Any]) -> None:
    saved_job = _read_job(path)
    for name, value in job.items():
        if saved_job.get(name) != value:
            raise OutputError(
                f"{path} was started with {name} {saved_job.get(name)} (now {value}): use the "
                f"same {name} again, or delete {job_path(path)} to start over"
            )


def _read_job(path: Path) -> dict[str, Any]:
    """Read the job that the rows of a file belong to. Raises OutputError for any other file."""
    try:
        job = read_json(job_path(path))
    except DataError:
        job = None
    if not isinstance(job, dict) or _BATCH_SIZE_KEY not in job:
        raise _make_foreign_file_error(job_path(path))
    return job


def _make_foreign_file_error(path: Path) -> OutputError:
    return OutputError(f"{path} was not written by Onsight: move it away, or choose another name")


def _open_locked(path: Path) -> BinaryIO:
    """Open a file for this process alone, refusing links. Raises OutputError, OSError."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # Windows has no O_NOFOLLOW
    file = os.fdopen(os.open(path, flags, 0o666), "r+b")
    try:
        import fcntl  # not on Windows, where the file stays unlocked
    except ImportError:
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise OutputError(f"{path} is being written by another process") from error
    return file
