"""Checkpoints of a run: written beside the step, copied elsewhere, and where to go on from."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn

from onsight.deadline import Deadline
from onsight.errors import ConfigError, DataError, OutputError
from onsight.evaluation.results import EpochRow
from onsight.files import is_unfinished, keep_previous, move_into_place, private_name
from onsight.models.classifier import Classifier
from onsight.ranks.world import World
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
from onsight.training.progress import Progress
from onsight.training.run_folder import CONFIG, RunFolder


class Mirror:
    """Copies files of a run folder to the same places under a folder or URL, and back."""

    def __init__(self, url: str, folder: RunFolder) -> None:
        self.url = url
        self.root = folder.run or folder.path
        self.files, self.place = _open(url)

    def keep(self, path: Path) -> None:
        """Copy a file of the run, and what the run was asked for, which makes it whole."""
        for file in (path, self.root / CONFIG):
            if file.exists():
                self._put(file)

    def _put(self, file: Path) -> None:
        there = f"{self.place}/{file.relative_to(self.root).as_posix()}"
        parent = there.rpartition("/")[0]
        self.files.makedirs(parent, exist_ok=True)
        if _is_object_store(self.files):
            self.files.put_file(str(file), there)
            return
        self.files.invalidate_cache()
        for left in self.files.ls(parent, detail=False):  # by a process that was killed
            if is_unfinished(left.rpartition("/")[2]):
                self.files.rm_file(left)
        beside = f"{parent}/{private_name()}"
        self.files.put_file(str(file), beside)
        self.files.mv(beside, there)


class CheckpointWriter:
    """Writes snapshots one after the other, in a thread; on leaving the block all are written.

    mirror: where each file is copied to once it is written, if anywhere. Trouble with it is kept in
    `trouble`, since the files are safe; any other error is raised by the next call.
    """

    def __init__(self, mirror: Mirror | None = None) -> None:
        self.mirror = mirror
        self.trouble: list[str] = []
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self.pending: list[Future[None]] = []

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

    def write(self, path: Path, snapshot: Snapshot, former: Path | None = None) -> None:
        """Begin to write a file, after those before it; waits if one of the same path is waiting.

        former: where the file that is there now is kept. Raises DiskError of an earlier one.
        """
        while len(self.pending) > 1 or (self.pending and self.pending[0].done()):
            self.pending.pop(0).result()  # so that copies of two files are in memory at most
        self.pending.append(self.thread.submit(self._write, path, snapshot, former))

    def wait(self) -> None:
        """Wait until everything is written. Raises DiskError."""
        while self.pending:
            self.pending.pop(0).result()

    def _write(self, path: Path, snapshot: Snapshot, former: Path | None) -> None:
        if former:
            keep_previous(path, former)
        snapshot.write(path)
        if self.mirror:
            try:
                self.mirror.keep(path)
            except Exception as error:  # a store's library raises whatever it likes
                self.trouble.append(f"{path.name} was not copied to {self.mirror.url}: {error}")


class Checkpoints:
    """Writes a run's checkpoints and best weights on the first rank, while training goes on.

    A file waits only for those before it. Problems with copies elsewhere are only warned of.

    Args:
        folder: Where files are written.
        writer: Writes them.
        world: The ranks.
        warn: Shows a warning.
        data_key: A digest of the images, by which a resumed run knows that they are the same.
        decisions: Kept in every checkpoint.
        deadline: Its seconds so far are kept in every checkpoint.
        every_steps: Steps of an epoch between two checkpoints; 0 for none.
        every_seconds: Seconds between two checkpoints in a long epoch.
        write_epoch: Writes the model of an epoch, if each is kept.
    """

    def __init__(
        self,
        folder: RunFolder,
        writer: CheckpointWriter,
        world: World,
        warn: Callable[[str], None],
        data_key: str,
        decisions: Decisions,
        deadline: Deadline,
        *,
        every_steps: int = 0,
        every_seconds: float = math.inf,
        write_epoch: Callable[[Classifier, EpochRow], None] | None = None,
    ) -> None:
        self.folder = folder
        self.writer = writer
        self.world = world
        self.warn = warn
        self.data_key = data_key
        self.decisions = decisions
        self.deadline = deadline
        self.every_steps = every_steps
        self.every_seconds = every_seconds
        self.write_epoch = write_epoch
        self.saved_at = time.monotonic()
        self.last_is_whole = False  # so it is kept when the next is written

    def read(self) -> Checkpoint | None:
        """Read the last checkpoint or, if that is damaged, the one before it.

        Decisions and the time used until then count from now on. Returns None if there is no
        checkpoint. Raises DataError if the images changed since then.
        """
        self.world.check_equal("checkpoint", str(self.folder.last_checkpoint.exists()))
        if not self.folder.last_checkpoint.exists():
            return None  # stopped before its first checkpoint: start from the beginning
        checkpoint = self._read()
        if checkpoint.run.data_key != self.data_key:
            raise DataError(
                f"the images changed since the run in {self.folder.out} began; "
                "start a new run, or restore the original images"
            )
        self.decisions.update(checkpoint.run.decisions)
        self.deadline.add_elapsed(checkpoint.run.elapsed_seconds)
        return checkpoint

    def _read(self) -> Checkpoint:
        last, former = self.folder.last_checkpoint, self.folder.previous_checkpoint
        try:
            checkpoint = read_checkpoint(last)
        except OtherCheckpoint:
            raise
        except DamagedFile as error:
            try:
                checkpoint = read_checkpoint(former)
            except DamagedFile:
                raise error from None
            self.warn(f"{error}; the run goes on from the checkpoint before it, {former}")
        else:
            self.last_is_whole = True
        return checkpoint

    def is_due(self, step: int) -> bool:
        """Return whether to save after this step of an epoch."""
        if self.every_steps and step % self.every_steps == 0:
            return True
        return time.monotonic() - self.saved_at >= self.every_seconds

    def save(self, update: Update, progress: Progress) -> None:
        """Begin to write a checkpoint; the whole one that it replaces is kept."""
        self.saved_at = time.monotonic()
        former = self.folder.previous_checkpoint if self.last_is_whole else None

        def take() -> Snapshot:
            elapsed = self.deadline.elapsed()
            saved = SavedRun(self.data_key, elapsed, self.decisions.values, progress)
            return snapshot(update.step, update.average, saved)

        self._write(self.folder.last_checkpoint, take, former)
        self.last_is_whole = True

    def save_best(self, net: nn.Module) -> None:
        """Begin to write the weights that validated best."""
        self._write(self.folder.best_weights, lambda: snapshot_weights(net))

    def keep_epoch(self, classifier: Classifier, row: EpochRow) -> None:
        """Write the model of an epoch, if each is kept."""
        if self.write_epoch and self.world.is_main:
            self.write_epoch(classifier, row)

    def wait(self) -> None:
        """Wait until everything is written."""
        self.world.does("waiting until the checkpoints are written")
        with self.world.watchdog_paused():
            self.writer.wait()
        self._warn()

    def drop_former(self) -> None:
        """Training is over: its last checkpoint is enough."""
        if self.world.is_main:
            self.folder.previous_checkpoint.unlink(missing_ok=True)

    def _write(self, path: Path, take: Callable[[], Snapshot], former: Path | None = None) -> None:
        if self.world.is_main:
            taken = take()
            with self.world.watchdog_paused():
                self.writer.write(path, taken, former)
            self._warn()

    def _warn(self) -> None:
        while self.writer.trouble:
            self.warn(self.writer.trouble.pop(0))


# An object appears when it is whole. Elsewhere a file shows while it is written: it gets a name of
# its own first and is then renamed.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci"}


def restore(url: str, run: Path) -> bool:
    """Bring a run's checkpoints back from where they were copied to; whether there are any."""
    files, place = _open(url)
    if not files.exists(f"{place}/{CONFIG}"):
        return False
    found = [path for path in files.find(place) if not path.rpartition("/")[2].startswith(".")]
    found.sort(key=lambda path: path.endswith(CONFIG))  # last: it says that the others are there
    for path in found:
        target = run / path.removeprefix(place).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(private_name())
        files.get_file(path, str(beside))
        with open(beside, "rb") as file:
            move_into_place(file, beside, target)
    return True


def refuse_taken(url: str) -> None:
    """Raise OutputError if the checkpoints of another run are there."""
    files, place = _open(url)
    if files.exists(f"{place}/{CONFIG}") or files.find(f"{place}/checkpoints"):
        raise OutputError(
            f"{url} holds the checkpoints of a run: choose another place, or continue that run "
            "with --resume"
        )


def _open(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it. Raises ConfigError."""
    import fsspec  # only here: runs without a second place need none of it

    try:
        files, place = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"--checkpoints {url}: {error}") from error
    return files, str(place).rstrip("/")


def _is_object_store(files: Any) -> bool:
    names = files.protocol if isinstance(files.protocol, (tuple, list)) else (files.protocol,)
    return not _OBJECT_STORES.isdisjoint(names)
