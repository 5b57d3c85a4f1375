"""Writes checkpoints beside the step: training waits for the copies in memory, not for the disk."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from onsight.files import keep_previous
from onsight.training.run_folder.checkpoint import Snapshot
from onsight.training.run_folder.mirror import Mirror


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
