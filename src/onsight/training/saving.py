"""Writes the checkpoints of a run in the background, copies them elsewhere, and reads them."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from onsight.deadline import Deadline
from onsight.errors import ConfigError, ImagesChanged, OutputError
from onsight.evaluation.predictions import PredictionTable
from onsight.evaluation.results import EpochRow
from onsight.files import is_unfinished, keep_previous, move_into_place, private_name
from onsight.models.classifier import Classifier
from onsight.ranks.world import World
from onsight.report.run_files import DECISIONS
from onsight.step.update import Update
from onsight.tensorfile import DamagedFile
from onsight.training.checkpoint import (
    Checkpoint,
    OtherCheckpoint,
    SavedRun,
    Snapshot,
    read_checkpoint,
    snapshot,
    snapshot_weights,
)
from onsight.training.decisions import Decisions
from onsight.training.model_file import BestSoFar
from onsight.training.progress import Progress
from onsight.training.run_folder import CONFIG, RunFolder


class Mirror:
    """Copies files of a run to the same relative paths under another folder or URL.

    Args:
        url: The folder or URL.
        folder: The run folder, or the folder of a member or a fold.
    """

    def __init__(self, url: str, folder: RunFolder) -> None:
        self.url = url
        self.root = folder.run or folder.path
        around = (folder.path, *folder.path.parents)  # a fold may be that of a member
        parts = [path for path in around if path.is_relative_to(self.root)]
        names = DECISIONS, CONFIG, folder.plan.name
        self.decided = [part / name for part in parts for name in names]
        self.filesystem, self.path = _open(url)

    def copy(self, path: Path) -> None:
        """Copy a file of the run, and then what the run has decided, its config above all."""
        for file in (path, *self.decided):
            if file.exists():
                self._upload(file)

    def try_to_copy(self, path: Path, warn: Callable[[str], object]) -> None:
        """Copy a file of the run; warn if that fails."""
        try:
            self.copy(path)
        except Exception as error:  # the errors depend on the library of the file system
            warn(f"{path.name} was not copied to {self.url}: {error}")

    def _upload(self, file: Path) -> None:
        target = f"{self.path}/{file.relative_to(self.root).as_posix()}"
        parent = target.rpartition("/")[0]
        self.filesystem.makedirs(parent, exist_ok=True)
        if _is_object_store(self.filesystem):
            self.filesystem.put_file(str(file), target)
            return
        self.filesystem.invalidate_cache()
        for name in self.filesystem.ls(parent, detail=False):
            if is_unfinished(name.rpartition("/")[2]):  # left by a killed process
                self.filesystem.rm_file(name)
        temporary = f"{parent}/{private_name()}"
        try:
            self.filesystem.put_file(str(file), temporary)
            self.filesystem.mv(temporary, target)
        except Exception:  # part of it may be there, where the disk is full
            with suppress(Exception):
                self.filesystem.rm_file(temporary)
            raise


class CheckpointWriter:
    """Writes snapshots one after the other in a thread; a context manager that waits for them.

    An error while writing is raised by the next call. Nothing is written after it: a checkpoint may
    refer to best weights that could not be written.

    Args:
        mirror: Copies each file after it is written, if given.

    Attributes:
        warnings: Messages about failed copies, which do not stop the run.
        has_failed: Whether a file could not be written.
    """

    def __init__(self, mirror: Mirror | None = None) -> None:
        self.mirror = mirror
        self.warnings: list[str] = []
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self.pending: list[Future[None]] = []
        self.has_failed = False

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.thread.shutdown(wait=True)
        if error is None:
            self.wait()

    def write(self, path: Path, snapshot: Snapshot, previous: Path | None = None) -> None:
        """Queue a file; wait first if two are queued already, to limit the snapshots in memory.

        Args:
            previous: Where to keep the file that is replaced; None deletes it.

        Raises:
            DiskError: An earlier file could not be written.
        """
        while len(self.pending) > 1 or (self.pending and self.pending[0].done()):
            self.pending.pop(0).result()
        self.pending.append(self.thread.submit(self._write, path, snapshot, previous))

    def wait(self) -> None:
        """Wait until all files are written. Raises DiskError."""
        while self.pending:
            self.pending.pop(0).result()

    def _write(self, path: Path, snapshot: Snapshot, previous: Path | None) -> None:
        if self.has_failed:
            return
        try:
            if previous:
                keep_previous(path, previous)
            snapshot.write(path)
        except BaseException:
            self.has_failed = True
            raise
        if self.mirror:
            self.mirror.try_to_copy(path, self.warnings.append)


@dataclass
class Checkpoints:
    """Reads and writes a run's checkpoints and best weights; only the first rank writes."""

    folder: RunFolder
    writer: CheckpointWriter
    world: World
    warn: Callable[[str], None]
    data_key: str  # digest of the images, to check that a resumed run has the same ones
    decisions: Decisions  # stored in every checkpoint
    deadline: Deadline  # the run's elapsed time is stored in every checkpoint
    every_steps: int = 0  # steps of an epoch between two checkpoints; 0 for no limit
    every_seconds: float = math.inf  # between two checkpoints within an epoch
    # Writes the model file of an epoch; None if epochs are not kept.
    write_epoch: Callable[[Classifier, EpochRow], None] | None = None
    best_so_far: BestSoFar | None = None  # of the run; None if this training is that of a fold
    saved_at: float = field(default_factory=time.monotonic, init=False)
    # A damaged last checkpoint must not replace the previous one.
    last_is_valid: bool = field(default=False, init=False)

    def read(self) -> Checkpoint | None:
        """Read the last checkpoint or, if that is damaged, the one before it.

        Also restores the decisions and the elapsed time.

        Returns:
            The checkpoint, or None if the run was stopped before its first one.

        Raises:
            ImagesChanged: They are not the images that the run began with.
            DamagedFile: Neither checkpoint can be read.
        """
        self.world.check_equal("checkpoint", str(self.folder.last_checkpoint.exists()))
        if not self.folder.last_checkpoint.exists():
            return None
        checkpoint = self._read()
        if checkpoint.run.data_key != self.data_key:
            raise ImagesChanged(self.folder.out)
        self.decisions.update(checkpoint.run.decisions)
        self.deadline.count_earlier(checkpoint.run.elapsed_seconds)
        return checkpoint

    def _read(self) -> Checkpoint:
        last, previous = self.folder.last_checkpoint, self.folder.previous_checkpoint
        try:
            checkpoint = read_checkpoint(last)
        except OtherCheckpoint:
            raise
        except DamagedFile as error:
            try:
                checkpoint = read_checkpoint(previous)
            except DamagedFile:
                raise error from None
            self.warn(f"{error}; resuming from the checkpoint before it, {previous}")
        else:
            self.last_is_valid = True
        return checkpoint

    def is_due(self, step: int) -> bool:
        """Return whether to save a checkpoint after this step of an epoch."""
        if self.every_steps and step % self.every_steps == 0:
            return True
        return time.monotonic() - self.saved_at >= self.every_seconds

    def save(self, update: Update, progress: Progress) -> None:
        """Queue a checkpoint for writing; the one that it replaces is kept if it is valid."""
        self.saved_at = time.monotonic()
        previous = self.folder.previous_checkpoint if self.last_is_valid else None

        def take_snapshot() -> Snapshot:
            elapsed = self.deadline.whole.elapsed()
            saved = SavedRun(self.data_key, elapsed, self.decisions.values, progress)
            return snapshot(update.step, update.average, saved)

        self._write(self.folder.last_checkpoint, take_snapshot, previous)
        self.last_is_valid = True

    def save_best(self, classifier: Classifier, validation: PredictionTable | None) -> None:
        """Queue the best weights for writing, and offer them as the model of the run.

        Args:
            validation: Their predictions for validation images, if there are any.
        """
        self._write(self.folder.best_weights, lambda: snapshot_weights(classifier.net))
        if self.best_so_far and validation is not None and self.world.is_main:
            self.best_so_far.replace_if_better(classifier, validation)

    def save_epoch(self, classifier: Classifier, row: EpochRow) -> None:
        """Write the model file of an epoch, if epochs are kept."""
        if self.write_epoch and self.world.is_main:
            self.write_epoch(classifier, row)

    def wait(self) -> None:
        """Wait until all files are written. Raises DiskError."""
        self.world.report_activity("waiting until the checkpoints are written")
        with self.world.watchdog_paused():
            self.writer.wait()
        self._show_warnings()

    def remove_previous(self) -> None:
        """Remove the checkpoint before the last, which is not needed once training has ended."""
        if self.world.is_main:
            self.folder.previous_checkpoint.unlink(missing_ok=True)

    def _write(
        self, path: Path, take_snapshot: Callable[[], Snapshot], previous: Path | None = None
    ) -> None:
        if self.world.is_main:
            snapshot = take_snapshot()
            with self.world.watchdog_paused():
                self.writer.write(path, snapshot, previous)
            self._show_warnings()

    def _show_warnings(self) -> None:
        while self.writer.warnings:
            self.warn(self.writer.warnings.pop(0))


# Object stores replace an object atomically. On other file systems, a file is written under a
# temporary name and then renamed.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci"}


def restore_checkpoints(url: str, run: Path) -> bool:
    """Download a run's checkpoints from the URL that a Mirror has copied them to.

    Returns:
        Whether there were any.
    """
    filesystem, root = _open(url)
    if not filesystem.exists(f"{root}/{CONFIG}"):
        return False
    paths = [path for path in filesystem.find(root) if not path.rpartition("/")[2].startswith(".")]
    paths.sort(key=lambda path: path.endswith(CONFIG))  # last, as it marks the copy as complete
    for path in paths:
        name = path.removeprefix(root).lstrip("/")
        if ".." in name.split("/"):
            raise OutputError(f"{url} holds {name}, which would be written outside {run}")
        target = run / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(private_name())
        filesystem.get_file(path, str(temporary))
        with open(temporary, "rb") as file:
            move_into_place(file, temporary, target)
    return True


def check_unused(url: str) -> None:
    """Raise OutputError if a URL already holds the checkpoints of a run."""
    filesystem, root = _open(url)
    if filesystem.exists(f"{root}/{CONFIG}") or filesystem.find(f"{root}/checkpoints"):
        raise OutputError(
            f"{url} holds the checkpoints of a run: choose another place, or continue that run "
            "with --resume"
        )


def _open(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL and the path in it. Raises ConfigError."""
    import fsspec  # most runs do not need it

    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"--checkpoints {url}: {error}") from error
    return filesystem, str(path).rstrip("/")


def _is_object_store(filesystem: Any) -> bool:
    protocol = filesystem.protocol
    names = protocol if isinstance(protocol, (tuple, list)) else (protocol,)
    return not _OBJECT_STORES.isdisjoint(names)
