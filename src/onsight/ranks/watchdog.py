"""Ends the job, naming the rank at fault, if a rank is lost or stuck.

Each rank writes a heartbeat to the store once a second: a counter, how many synchronization points
it has reached, how much progress it has reported, whether its watchdog is paused, and what it is
doing. A process that is gone or stopped sends no heartbeats. One that hangs still does, but keeps
the others waiting and reports no progress; one that is merely slow reports some.
"""

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import Store

from onsight.files import write_json

STORE_ENV = "ONSIGHT_STORE"  # environment variable: host:port of the launcher's store

BEAT_SECONDS = 1.0
LOST_SECONDS = 15.0  # a rank without heartbeats for this long is lost
STUCK_SECONDS = 45.0  # a rank that the others wait for, without progress for this long, is stuck

_SUSPENDED_SECONDS = 5.0  # between two reads: this process was itself suspended

_LEFT = "left"


@dataclass
class LastSeen:
    """The last known state of a rank, and when each part of it changed (monotonic seconds)."""

    beat: str
    beat_at: float
    syncs: int = 0
    synced_at: float = 0.0
    reports: int = 0
    reported_at: float = 0.0
    paused: bool = False
    activity: str = ""
    left: bool = False


class Heartbeats:
    """Finds silent and stuck ranks by their heartbeats; callers pass the time."""

    def __init__(self, size: int, now: float) -> None:
        self.last_seen = [LastSeen("", now, synced_at=now, reported_at=now) for _ in range(size)]
        self.read_at = now

    def read(self, store: Store, now: float) -> None:
        """Read the latest heartbeats of all ranks."""
        if now - self.read_at > _SUSPENDED_SECONDS:
            self._extend_waits(now - self.read_at)
        self.read_at = now
        for rank in range(len(self.last_seen)):
            key = f"beat/{rank}"
            if store.check([key]):
                self.record(rank, store.get(key).decode(), now)

    def record(self, rank: int, beat: str, now: float) -> None:
        """Record a rank's latest heartbeat."""
        seen = self.last_seen[rank]
        if beat == seen.beat:
            return
        seen.beat, seen.beat_at = beat, now
        seen.left = beat == _LEFT
        if not seen.left:
            _, syncs, reports, paused, seen.activity = beat.split(" ", 4)
            seen.paused = paused == "1"
            if int(syncs) != seen.syncs or seen.paused:
                seen.syncs, seen.synced_at = int(syncs), now
            if int(reports) != seen.reports or seen.synced_at == now:
                seen.reports, seen.reported_at = int(reports), now

    def _extend_waits(self, seconds: float) -> None:
        """Allow every rank more time: while suspended, this process could not see heartbeats."""
        for seen in self.last_seen:
            seen.beat_at += seconds
            seen.synced_at += seconds
            seen.reported_at += seconds

    def silent(self, now: float, seconds: float = LOST_SECONDS) -> list[int]:
        """Return the ranks that have sent heartbeats, but none for this long."""
        return [
            rank
            for rank, seen in enumerate(self.last_seen)
            if seen.beat and not seen.left and now - seen.beat_at > seconds
        ]

    def stuck(self, now: float) -> list[int]:
        """Return the ranks that the others have waited for too long."""
        if any(seen.paused or seen.left for seen in self.last_seen):
            return []
        furthest = max(seen.syncs for seen in self.last_seen)
        waiting = [seen for seen in self.last_seen if seen.syncs == furthest]
        if furthest == 0 or now - max(seen.synced_at for seen in waiting) < STUCK_SECONDS:
            return []
        return [
            rank
            for rank, seen in enumerate(self.last_seen)
            if seen.syncs < furthest and now - seen.reported_at >= STUCK_SECONDS
        ]


class Watchdog:
    """Sends this rank's heartbeats and watches the others, in its own threads.

    Attributes:
        syncs: How many synchronization points this rank has reached.
        reports: How often it has reported progress.
        activity: What it is doing, for messages on the other ranks.
        paused: Whether it may keep the others waiting for any time.
    """

    def __init__(self, store: Store, rank: int, size: int, node: int = 0) -> None:
        self.store = store.clone()  # its own connection: the main one may block for a long time
        self.rank = rank
        self.size = size
        self.node = node
        self.syncs = self.reports = 0
        self.activity = "starting"
        self.paused = True
        self.heartbeats = Heartbeats(size, time.monotonic())
        self.stopped = threading.Event()
        self.lock = threading.Lock()
        self.store.set(f"process/{rank}", str(os.getpid()))
        self.store.set(f"machine/{rank}", str(node))
        self.store.set(f"place/{rank}", f"process {os.getpid()} on {socket.gethostname()}")
        self._beat(0)  # now: a rank that has never sent one does not count as silent
        self.first_rank = ""  # its description: it may host the store, and then cannot be asked
        self.thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self.thread.start()
        threading.Thread(target=self._watch_store, name="watchdog-of-store", daemon=True).start()

    def stop(self) -> None:
        """Stop sending heartbeats and watching the others."""
        self.stopped.set()
        self.thread.join()

    def _watch_store(self) -> None:
        """End the job if the store's process is stopped, which makes reads block."""
        read_at, beats = 0.0, 0
        while not self.stopped.wait(BEAT_SECONDS):
            beats = beats + 1 if read_at == self.heartbeats.read_at else 0
            read_at = self.heartbeats.read_at
            if beats * BEAT_SECONDS > LOST_SECONDS:
                host = f", probably {self.first_rank}," if self.first_rank else ""
                end_job(
                    f"the process that coordinates the ranks{host} has not been heard from for "
                    f"{LOST_SECONDS:.0f} s"
                )

    def leave(self) -> None:
        """Stop, and tell the others that this rank is done rather than lost."""
        self.stop()
        with suppress(RuntimeError):  # the process that hosts the store may have left already
            self.store.set(f"beat/{self.rank}", _LEFT)

    def find_lost(self, seconds: float = LOST_SECONDS) -> list[int]:
        """Wait until some ranks are known to be lost, at most this long; there may be none."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with self.lock:
                silent = self.heartbeats.silent(time.monotonic(), 4 * BEAT_SECONDS)
            if silent:
                return silent
            time.sleep(BEAT_SECONDS / 4)
        return []

    def describe(self, rank: int) -> str:
        """Return a rank with its process, machine and last activity, as far as known."""
        return describe(self.store, rank, self.heartbeats.last_seen[rank].activity)

    def _run(self) -> None:
        beats = 0
        while not self.stopped.wait(BEAT_SECONDS):
            beats += 1
            try:
                self._beat(beats)
                with self.lock:
                    self.heartbeats.read(self.store, time.monotonic())
                self.first_rank = self.describe(0)
            except RuntimeError:
                if not self.stopped.is_set():
                    end_job("the process that coordinates the ranks is gone")
            self._end_job_if_needed()

    def _beat(self, number: int) -> None:
        beat = f"{number} {self.syncs} {self.reports} {int(self.paused)} {self.activity}"
        self.store.set(f"beat/{self.rank}", beat)

    def _end_job_if_needed(self) -> None:
        with self.lock:
            now = time.monotonic()
            silent, stuck = self.heartbeats.silent(now), self.heartbeats.stuck(now)
        for ranks, what in (
            (silent, f"has not been heard from for {LOST_SECONDS:.0f} s"),
            (stuck, f"has kept the others waiting for {STUCK_SECONDS:.0f} s"),
        ):
            if ranks and self.rank not in ranks and not self.stopped.is_set():
                names = ", ".join(self.describe(rank) for rank in ranks)
                self._kill_local(ranks)
                end_job(f"{names} {what}")

    def _kill_local(self, ranks: list[int]) -> None:
        """Kill those of the ranks that run on this machine.

        A stopped process reacts to no other signal, and launchers would wait for it; Onsight's own
        launcher does this itself.
        """
        if STORE_ENV in os.environ:
            return
        with suppress(RuntimeError):
            for rank in ranks:
                if int(self.store.get(f"machine/{rank}")) == self.node:
                    kill(self.store, rank)


class LauncherWatchdog:
    """Watches the ranks from their launcher, and kills those that are silent or stuck.

    A stopped process reacts to no other signal, and the launcher would wait for it.
    """

    def __init__(self, store: Store, size: int) -> None:
        self.store = store
        self.heartbeats = Heartbeats(size, time.monotonic())
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="launcher-watchdog", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self.stopped.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.stopped.wait(BEAT_SECONDS):
            self.heartbeats.read(self.store, time.monotonic())
            earlier = time.monotonic() - 2 * BEAT_SECONDS  # so that the ranks can report it first
            silent = self.heartbeats.silent(earlier, LOST_SECONDS)
            for rank in silent + self.heartbeats.stuck(earlier):
                kill(self.store, rank)

    def describe(self, rank: int) -> str:
        """Return a rank with its process, machine and activity, by its very last heartbeat."""
        latest = Heartbeats(rank + 1, time.monotonic())
        latest.read(self.store, time.monotonic())
        return describe(self.store, rank, latest.last_seen[rank].activity)


def describe(store: Store, rank: int, activity: str) -> str:
    """Return a rank with its process and machine, as far as the store knows, and its activity."""
    place = ""
    with suppress(RuntimeError):
        if store.check([f"place/{rank}"]):
            place = store.get(f"place/{rank}").decode()
    facts = ", ".join(part for part in (place, activity and f"last seen {activity}") if part)
    return f"rank {rank} ({facts})" if facts else f"rank {rank}"


def kill(store: Store, rank: int) -> None:
    """Kill the process of a rank on this machine."""
    process = int(store.get(f"process/{rank}"))
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def end_job(reason: str) -> None:
    """Report the reason and exit immediately: the main thread may be blocked forever."""
    message = f"{reason}; the job was ended"
    if not report_to_launcher(message, 1, lost=True) or STORE_ENV not in os.environ:
        print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(1)


def report_to_launcher(
    message: str, exit_code: int, *, lost: bool = False, bug: bool = False
) -> bool:
    """Tell torch's elastic launcher why this rank exits; return False if there is no launcher.

    Args:
        message: What to print.
        exit_code: What the launcher exits with.
        lost: Whether another rank was lost.
        bug: Whether the message is a traceback.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return False
    facts: dict[str, object] = {"timestamp": str(int(time.time())), "exit_code": exit_code}
    facts |= {"lost": lost, "bug": bug}
    write_json(Path(path), {"message": {"message": message, "extraInfo": facts}})
    return True
