"""A file of rows that gets its name once it is complete, and can be continued until then.

Rows are written to a hidden file next to it. A second hidden file describes the job that they
belong to: it is written after the rows' file was created and removed after that was renamed, so
one without the other means either not started or complete. A file with one of these names that
was not written here is left alone.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from os.path import exists  # unlike Path.exists, it accepts any name
from pathlib import Path
from typing import Any, BinaryIO

from onsight.errors import OutputError
from onsight.files import disk_errors, move_into_place, write_json
from onsight.inference.images import Input, is_batch_full
from onsight.inference.predictor import Prediction, list_model_files
from onsight.inference.row_formats import ResumableFormat, RowCounts
from onsight.inference.runner import Runner
from onsight.inference.sinks import Sink
from onsight.installation import onsight_version
from onsight.text import plural

BATCH_SIZE = "batch size"

_SYNC_SECONDS = 5.0  # rows a power cut may cost; a killed process loses none


def rows_path(path: Path) -> Path:
    """Return the hidden file that collects the rows until they are complete."""
    return path.with_name(f".onsight-rows-{path.name}")


def job_path(path: Path) -> Path:
    """Return the hidden file that describes the job of an incomplete file."""
    return path.with_name(f".onsight-job-{path.name}")


def describe_job(model: Path, runner: Runner) -> dict[str, object]:
    """Return the model, and everything that may change the last bits of its probabilities.

    Rows of two runs can be in one file only if these are equal.
    """
    with open(list_model_files(model)[0], "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    return {
        "model": digest,
        "version of Onsight": onsight_version(),
        "device": str(runner.facts.get("device", "")),
        BATCH_SIZE: runner.batch_size,
    }


def discard(path: Path) -> None:
    """Remove the rows of a run that can never be completed."""
    rows_path(path).unlink(missing_ok=True)
    job_path(path).unlink(missing_ok=True)


def refuse_interrupted(path: Path) -> None:
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
            f"{path} is complete, so there is nothing to resume; leave out --resume to write it "
            "again"
        )


def is_complete(path: Path, job: Mapping[str, Any]) -> bool:
    """Return True if a run of this job was killed right after it renamed the complete file."""
    if exists(rows_path(path)) or not exists(path):
        return False
    _refuse_other_job(path, job)
    job_path(path).unlink()
    return True


class ResumableFile(Sink):
    """Rows in a file that an interrupted run leaves ready to be continued."""

    def __init__(self, path: Path, form: ResumableFormat, job: Mapping[str, Any]) -> None:
        self._path, self._rows_path, self._job_path = path, rows_path(path), job_path(path)
        self._form = form
        self._job = job  # has to be equal in the run that continues the file
        self._synced = time.monotonic()
        is_started = exists(self._job_path)
        if is_started:
            _read_job(path)
        with disk_errors(self._rows_path):
            self._file = _open_locked(self._rows_path)
            start = self._file.read(len(form.head) + 1)
            self._file.seek(0)
        if not is_started and not form.head.startswith(start):
            self._file.close()
            raise _foreign_file(self._rows_path)

    def start(self) -> None:
        """Start a new file, without rows."""
        with disk_errors(self._rows_path):
            self._file.truncate(0)
            self._file.seek(0)
            self._job_path.unlink(missing_ok=True)
            self._file.write(self._form.head)
            self._sync()
        write_json(self._job_path, self._job)

    def resume(self, inputs: Iterator[Input]) -> tuple[Iterator[Input], RowCounts]:
        """Skip the inputs that have rows; return the remaining inputs and the counts so far.

        Rows after the last full batch are cut off, so that the remaining batches, and with them
        the bits of their probabilities, are those of an uninterrupted run. Raises OutputError for
        rows of another job.
        """
        counts = RowCounts()
        if exists(self._job_path):
            _refuse_other_job(self._path, self._job)
        if not exists(self._job_path) or self._read_head() != self._form.head:
            self.start()
            return inputs, counts
        end, batch_size = self._file.tell(), self._job[BATCH_SIZE]
        batch: list[tuple[Input, Prediction]] = []
        usable = 0
        for row, row_end in self._form.read(self._file):
            image = next(inputs, None)
            if image is None or image.name != row.path:
                raise self._different_inputs(counts.images + len(batch) + 1, row.path, image)
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
            self._file.write(self._form.rows(rows))
            self._file.flush()
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                self._sync()

    def finish(self, counts: RowCounts) -> None:
        """Give the file its name."""
        with disk_errors(self._path):
            move_into_place(self._file, self._rows_path, self._path)
            self._job_path.unlink()

    def close(self) -> None:
        """Close the file, and remove it if it has no rows."""
        with suppress(OSError):  # a failed write has been reported
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

    def _different_inputs(self, number: int, path: str, image: Input | None) -> OutputError:
        now = f"now it is {image.name}" if image else f"now there are {plural(number - 1, 'input')}"
        return OutputError(
            f"{self._rows_path} does not match the inputs: number {number:,} was {path}, {now}. "
            "Use the same inputs in the same order, or delete the file to start over"
        )


def _refuse_other_job(path: Path, job: Mapping[str, Any]) -> None:
    """Raise OutputError if the rows belong to another job."""
    former = _read_job(path)
    for name, value in job.items():
        if former.get(name) != value:
            raise OutputError(
                f"{path} was started with another {name} ({former.get(name)}; now {value}): "
                f"resume with the one it was started with, or delete {job_path(path)} to start "
                "over"
            )


def _read_job(path: Path) -> dict[str, Any]:
    """Read the job that the rows of a file belong to. Raises OutputError for any other file."""
    try:
        job = json.loads(job_path(path).read_text(encoding="utf-8"))
    except ValueError:
        job = None
    if not isinstance(job, dict) or BATCH_SIZE not in job:
        raise _foreign_file(job_path(path))
    return job


def _foreign_file(path: Path) -> OutputError:
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
