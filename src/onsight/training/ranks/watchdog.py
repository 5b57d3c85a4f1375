"""The watch that every rank keeps over the others: a lost or stuck one ends the job, named.

Each rank writes its beat to the store once a second: a count, the steps it has syncs at, and
whether it is at work that others may have to wait for. Two things are told apart: a process
that is gone or stopped beats no more; one that hangs beats on, but lets the others wait.
"""

import json
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

BEAT_SECONDS = 1.0
LOST_SECONDS = 15.0  # without a beat
STUCK_SECONDS = 45.0  # that others have waited for a rank in a step

_NAP_SECONDS = 5.0  # between two looks: then the one who looks was stopped itself

_LEFT = "left"


@dataclass
class LastSeen:
    """What was last seen of a rank, and when (monotonic seconds)."""

    beat: str
    changed_at: float
    syncs: int = 0
    synced_at: float = 0.0
    paused: bool = False
    left: bool = False


class Heartbeats:
    """Judges the ranks by their beats; knows no clock of its own."""

    def __init__(self, size: int, now: float) -> None:
        self.last_seen = [LastSeen("", now, synced_at=now) for _ in range(size)]
        self.looked_at = now

    def read(self, store: Store, now: float) -> None:
        """Take in the latest beats of all ranks."""
        if now - self.looked_at > _NAP_SECONDS:
            self._forgive(now - self.looked_at)
        self.looked_at = now
        for rank in range(len(self.last_seen)):
            key = f"beat/{rank}"
            if store.check([key]):
                self.see(rank, store.get(key).decode(), now)

    def see(self, rank: int, beat: str, now: float) -> None:
        """Take in a rank's latest beat."""
        seen = self.last_seen[rank]
        if beat == seen.beat:
            return
        seen.beat, seen.changed_at = beat, now
        seen.left = beat == _LEFT
        if not seen.left:
            _, syncs, paused = beat.split()
            if int(syncs) != seen.syncs or paused == "1":
                seen.syncs, seen.synced_at = int(syncs), now
            seen.paused = paused == "1"

    def _forgive(self, seconds: float) -> None:
        """Who slept itself, as when a whole job is suspended, cannot tell who else did."""
        for seen in self.last_seen:
            seen.changed_at += seconds
            seen.synced_at += seconds

    def silent(self, now: float, seconds: float = LOST_SECONDS) -> list[int]:
        """Ranks that have beaten, and not for so long."""
        return [
            rank
            for rank, seen in enumerate(self.last_seen)
            if seen.beat and not seen.left and now - seen.changed_at > seconds
        ]

    def stuck(self, now: float) -> list[int]:
        """Ranks that others have waited for too long at a step."""
        if any(seen.paused or seen.left for seen in self.last_seen):
            return []
        furthest = max(seen.syncs for seen in self.last_seen)
        waiting = [seen for seen in self.last_seen if seen.syncs == furthest]
        if furthest == 0 or now - max(seen.synced_at for seen in waiting) < STUCK_SECONDS:
            return []
        return [rank for rank, seen in enumerate(self.last_seen) if seen.syncs < furthest]


class Watchdog:
    """Beats for this rank and looks out for the others, in a thread of its own."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.store = store.clone()  # a connection of its own: the main one may wait for long
        self.rank = rank
        self.size = size
        self.syncs = 0
        self.paused = True
        self.heartbeats = Heartbeats(size, time.monotonic())
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.store.set(f"process/{rank}", str(os.getpid()))
        self.store.set(f"place/{rank}", f"process {os.getpid()} on {socket.gethostname()}")
        self._beat(0)  # at once: who never beat is not missed
        self.thread = threading.Thread(target=self._keep, name="watch", daemon=True)
        self.thread.start()

    def leave(self) -> None:
        """End the watch; the others see that this rank left in good order."""
        self.over.set()
        self.thread.join()
        with suppress(RuntimeError):  # the keeper of the store may have left before
            self.store.set(f"beat/{self.rank}", _LEFT)

    def find_lost(self, seconds: float = LOST_SECONDS) -> list[int]:
        """Wait, no longer than so, until it shows which ranks are gone; may be none."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with self.lock:
                silent = self.heartbeats.silent(time.monotonic(), 4 * BEAT_SECONDS)
            if silent:
                return silent
            time.sleep(BEAT_SECONDS / 4)
        return []

    def describe(self, rank: int) -> str:
        """A rank with its process and machine, as far as known."""
        with suppress(RuntimeError):
            if self.store.check([f"place/{rank}"]):
                return f"rank {rank} ({self.store.get(f'place/{rank}').decode()})"
        return f"rank {rank}"

    def _keep(self) -> None:
        beats = 0
        while not self.over.wait(BEAT_SECONDS):
            beats += 1
            try:
                self._beat(beats)
                with self.lock:
                    self.heartbeats.read(self.store, time.monotonic())
            except RuntimeError:
                if not self.over.is_set():
                    end_job("the process that keeps the ranks together is gone")
            self._judge()

    def _beat(self, number: int) -> None:
        self.store.set(f"beat/{self.rank}", f"{number} {self.syncs} {int(self.paused)}")

    def _judge(self) -> None:
        with self.lock:
            now = time.monotonic()
            silent, stuck = self.heartbeats.silent(now), self.heartbeats.stuck(now)
        for ranks, what in (
            (silent, f"has not been heard of for {LOST_SECONDS:.0f} s"),
            (stuck, f"has kept the others waiting for {STUCK_SECONDS:.0f} s"),
        ):
            if ranks and self.rank not in ranks and not self.over.is_set():
                names = ", ".join(self.describe(rank) for rank in ranks)
                end_job(f"{names} {what}")


class LauncherWatchdog:
    """Looks out for the ranks from their launcher, and ends those that are stopped or stuck.

    Such a process heeds no signal but the last; without it the launcher would wait long.
    """

    def __init__(self, store: Store, size: int) -> None:
        self.store = store
        self.heartbeats = Heartbeats(size, time.monotonic())
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._keep, name="warden", daemon=True)
        self.thread.start()

    def leave(self) -> None:
        """End the watch."""
        self.over.set()
        self.thread.join()

    def _keep(self) -> None:
        while not self.over.wait(BEAT_SECONDS):
            self.heartbeats.read(self.store, time.monotonic())
            earlier = time.monotonic() - 2 * BEAT_SECONDS  # the ranks may find it and say so first
            for rank in self.heartbeats.silent(earlier, LOST_SECONDS) + self.heartbeats.stuck(
                earlier
            ):
                process = int(self.store.get(f"process/{rank}"))
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def end_job(reason: str) -> None:
    """Say why and end this process at once: its main thread may be waiting for ever."""
    message = f"{reason}; the job was ended"
    if not leave_message(message, 1, lost=True):
        print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(1)


def leave_message(message: str, exit_code: int, *, lost: bool = False, bug: bool = False) -> bool:
    """Tell torch's elastic launcher why this rank ends; False when there is no launcher.

    lost: whether it is another rank that failed; bug: whether the message is a traceback.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return False
    facts: dict[str, object] = {"timestamp": str(int(time.time())), "exit_code": exit_code}
    facts |= {"lost": lost, "bug": bug}
    content = {"message": {"message": message, "extraInfo": facts}}
    Path(path).write_text(json.dumps(content), encoding="utf-8")
    return True
