"""A file of rows that has its name only once it is complete, and can be continued until then.

Rows go to a hidden file beside it, and another one says which job they are of. That is written once
the rows' file is there and removed once that has its name, so one without the other means: not
begun, or complete. Both have names that no other program gives; what is there under these names and
was not written here is left as it is.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from os.path import exists  # which, unlike Path's, takes any name
from pathlib import Path
from typing import Any, BinaryIO

from onsight.errors import OutputError
from onsight.files import disk_errors, put_in_place, write_json
from onsight.inference.decode_ahead import is_full
from onsight.inference.inputs.input import Input
from onsight.inference.job import BATCH_SIZE
from onsight.inference.predictor import Prediction
from onsight.inference.rows.counts import Counts
from onsight.inference.rows.form import ResumableForm
from onsight.words import plural

_SYNC_SECONDS = 5.0  # rows that a power cut may cost; a killed process loses none


def partial_path(path: Path) -> Path:
    """Where rows wait until the file is complete."""
    return path.with_name(f".onsight-rows-{path.name}")


def job_path(path: Path) -> Path:
    """Where the job of a partial file is described."""
    return path.with_name(f".onsight-job-{path.name}")


def discard(path: Path) -> None:
    """Remove the rows of a run that can never be complete."""
    partial_path(path).unlink(missing_ok=True)
    job_path(path).unlink(missing_ok=True)


def refuse_interrupted(path: Path) -> None:
    """Raise OutputError if an interrupted run has left rows, which would be lost."""
    if exists(partial_path(path)) and exists(job_path(path)):
        raise OutputError(
            f"{partial_path(path)} holds the rows of an interrupted run: add --resume to continue "
            "it, or remove the file to begin anew"
        )


def check_resumable(path: Path) -> None:
    """Raise OutputError if a file is there that is not a part of an interrupted run."""
    if exists(path) and not exists(partial_path(path)) and not exists(job_path(path)):
        raise OutputError(
            f"{path} is complete, so there is nothing to resume; leave out --resume to write it "
            "again"
        )


def is_complete(path: Path, job: Mapping[str, Any]) -> bool:
    """Whether a run of this job was killed just after it gave the file its name."""
    if exists(partial_path(path)) or not exists(path):
        return False
    _refuse_other_job(path, job)
    job_path(path).unlink()
    return True


class PartialFile:
    """A Sink of text in a file. job: what must be the same for rows to be continued, by name."""

    def __init__(self, path: Path, form: ResumableForm, job: Mapping[str, Any]) -> None:
        self._path, self._partial, self._job_path = path, partial_path(path), job_path(path)
        self._form = form
        self._job = job
        self._synced = time.monotonic()
        is_begun = exists(self._job_path)
        if is_begun:
            _read_job(path)
        with disk_errors(self._partial):
            self._file = _open_locked(self._partial)
            start = self._file.read(len(form.head) + 1)
            self._file.seek(0)
        if not is_begun and not form.head.startswith(start):
            self._file.close()
            raise _foreign(self._partial)

    def begin(self) -> None:
        """Begin with no rows."""
        with disk_errors(self._partial):
            self._file.truncate(0)
            self._file.seek(0)
            self._job_path.unlink(missing_ok=True)
            self._file.write(self._form.head)
            self._sync()
        write_json(self._job_path, self._job)

    def resume(self, inputs: Iterator[Input]) -> tuple[Iterator[Input], Counts]:
        """Skip the inputs that have rows, up to the end of a batch; what is left, and the counts.

        Later rows and a torn one are cut off, so the batches to come, and so the bits, are those
        of a run that was never interrupted. Raises OutputError for rows of another job.
        """
        counts = Counts()
        if exists(self._job_path):
            _refuse_other_job(self._path, self._job)
        if not exists(self._job_path) or self._read_head() != self._form.head:
            self.begin()
            return inputs, counts
        end, at_once = self._file.tell(), self._job[BATCH_SIZE]
        batch: list[tuple[Input, Prediction]] = []
        usable = 0
        for row, row_end in self._form.read(self._file):
            given = next(inputs, None)
            if given is None or given.name != row.path:
                raise self._other_inputs(counts.images + len(batch) + 1, row.path, given)
            batch.append((given, row))
            usable += row.problem is None
            if is_full(usable, len(batch), at_once):
                counts.add([row for _, row in batch])
                end, batch, usable = row_end, [], 0
        with disk_errors(self._partial):
            self._file.truncate(end)
            self._file.seek(end)
        return chain([given for given, _ in batch], inputs), counts

    def write(self, rows: Sequence[Prediction]) -> None:
        """More rows, safe from a killed process now, from a power cut after some seconds."""
        with disk_errors(self._partial):
            self._file.write(self._form.rows(rows))
            self._file.flush()
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                self._sync()

    def finish(self, counts: Counts) -> None:
        """Give the file its name."""
        with disk_errors(self._path):
            put_in_place(self._file, self._partial, self._path)
            self._job_path.unlink()

    def close(self) -> None:
        """Close the file; one without rows is of no use to anyone."""
        with suppress(OSError):  # what could not be written has been told
            self._file.flush()
        has_rows = os.fstat(self._file.fileno()).st_size > len(self._form.head)
        with suppress(OSError):
            self._file.close()
        if not has_rows:
            discard(self._path)

    def _read_head(self) -> bytes:
        return self._file.read(len(self._form.head))

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def _other_inputs(self, number: int, path: str, given: Input | None) -> OutputError:
        now = f"now it is {given.name}" if given else f"now there are {plural(number - 1, 'input')}"
        return OutputError(
            f"{self._partial} does not fit the inputs: number {number:,} was {path}, {now}. Give "
            "the same inputs in the same order, or remove the file to begin anew"
        )


def _refuse_other_job(path: Path, job: Mapping[str, Any]) -> None:
    """Raise OutputError if the rows are not of this job."""
    former = _read_job(path)
    for name, value in job.items():
        if former.get(name) != value:
            raise OutputError(
                f"{path} was begun with another {name} ({former.get(name)}; now {value}): resume "
                f"with what it was begun with, or remove {job_path(path)} to begin anew"
            )


def _read_job(path: Path) -> dict[str, Any]:
    """The job that rows of a file are of. Raises OutputError for a file that says no such thing."""
    try:
        found = json.loads(job_path(path).read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict) or BATCH_SIZE not in found:
        raise _foreign(job_path(path))
    return found


def _foreign(path: Path) -> OutputError:
    return OutputError(f"{path} was not written by Onsight: move it away, or choose another name")


def _open_locked(path: Path) -> BinaryIO:
    """The file, which nobody else writes and which is no link. Raises OutputError, OSError."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # which Windows lacks
    file = os.fdopen(os.open(path, flags, 0o666), "r+b")
    try:
        import fcntl  # not on Windows, where nothing enforces the claim
    except ImportError:
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise OutputError(f"{path} is being written by another process") from error
    return file
