"""Every rank watches the others: a rank that is lost or stuck is named, and the job ends.

Each rank writes a heartbeat to the store once a second: a counter, how many synchronization points
it has reached, how far it has come since, whether it is doing work that others may have to wait
for, and what it is doing. A process that is gone or stopped no longer beats; one that hangs keeps
beating, but keeps the others waiting and does not move; one that is only slow moves.
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

LAUNCHED = "ONSIGHT_STORE"  # host:port of the store that Onsight's own launcher hosts

BEAT_SECONDS = 1.0
LOST_SECONDS = 15.0  # without a heartbeat
STUCK_SECONDS = 45.0  # that others have waited for a rank which has not moved

_NAP_SECONDS = 5.0  # between two reads: then this process was itself suspended

_LEFT = "left"


@dataclass
class LastSeen:
    """What was last seen of a rank, and when (monotonic seconds)."""

    beat: str
    changed_at: float
    syncs: int = 0
    synced_at: float = 0.0
    moves: int = 0
    moved_at: float = 0.0
    paused: bool = False
    doing: str = ""
    left: bool = False


class Heartbeats:
    """Finds silent and stuck ranks by their heartbeats; has no clock of its own."""

    def __init__(self, size: int, now: float) -> None:
        self.last_seen = [LastSeen("", now, synced_at=now, moved_at=now) for _ in range(size)]
        self.looked_at = now

    def read(self, store: Store, now: float) -> None:
        """Read the latest heartbeats of all ranks."""
        if now - self.looked_at > _NAP_SECONDS:
            self._forgive(now - self.looked_at)
        self.looked_at = now
        for rank in range(len(self.last_seen)):
            key = f"beat/{rank}"
            if store.check([key]):
                self.see(rank, store.get(key).decode(), now)

    def see(self, rank: int, beat: str, now: float) -> None:
        """Take note of a rank's latest heartbeat."""
        seen = self.last_seen[rank]
        if beat == seen.beat:
            return
        seen.beat, seen.changed_at = beat, now
        seen.left = beat == _LEFT
        if not seen.left:
            _, syncs, moves, paused, seen.doing = beat.split(" ", 4)
            seen.paused = paused == "1"
            if int(syncs) != seen.syncs or seen.paused:
                seen.syncs, seen.synced_at = int(syncs), now
            if int(moves) != seen.moves or seen.synced_at == now:
                seen.moves, seen.moved_at = int(moves), now

    def _forgive(self, seconds: float) -> None:
        """Restart every wait: a process that was suspended itself cannot blame the others."""
        for seen in self.last_seen:
            seen.changed_at += seconds
            seen.synced_at += seconds
            seen.moved_at += seconds

    def silent(self, now: float, seconds: float = LOST_SECONDS) -> list[int]:
        """Ranks that have sent a heartbeat, but none for this long."""
        return [
            rank
            for rank, seen in enumerate(self.last_seen)
            if seen.beat and not seen.left and now - seen.changed_at > seconds
        ]

    def stuck(self, now: float) -> list[int]:
        """Ranks that have kept the others waiting for too long in a step."""
        if any(seen.paused or seen.left for seen in self.last_seen):
            return []
        furthest = max(seen.syncs for seen in self.last_seen)
        waiting = [seen for seen in self.last_seen if seen.syncs == furthest]
        if furthest == 0 or now - max(seen.synced_at for seen in waiting) < STUCK_SECONDS:
            return []
        return [
            rank
            for rank, seen in enumerate(self.last_seen)
            if seen.syncs < furthest and now - seen.moved_at >= STUCK_SECONDS
        ]


class Watchdog:
    """Sends this rank's heartbeat and watches the others, in a thread of its own."""

    def __init__(self, store: Store, rank: int, size: int, node: int = 0) -> None:
        self.store = store.clone()  # a connection of its own: the main one may block a long time
        self.rank = rank
        self.size = size
        self.node = node
        self.syncs = self.moves = 0
        self.doing = "starting"
        self.paused = True
        self.heartbeats = Heartbeats(size, time.monotonic())
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.store.set(f"process/{rank}", str(os.getpid()))
        self.store.set(f"machine/{rank}", str(node))
        self.store.set(f"place/{rank}", f"process {os.getpid()} on {socket.gethostname()}")
        self._beat(0)  # at once: a rank that never sent one is not missed
        self.first = ""  # the first rank, as last described: it may host the store
        self.thread = threading.Thread(target=self._keep, name="watchdog", daemon=True)
        self.thread.start()
        threading.Thread(target=self._watch_store, name="watchdog-of-store", daemon=True).start()

    def stop(self) -> None:
        """Send no more heartbeats and watch no more."""
        self.over.set()
        self.thread.join()

    def _watch_store(self) -> None:
        """End the job if the store does not answer: its process is stopped, and reads wait on."""
        looked_at, beats = 0.0, 0
        while not self.over.wait(BEAT_SECONDS):
            beats = beats + 1 if looked_at == self.heartbeats.looked_at else 0
            looked_at = self.heartbeats.looked_at
            if beats * BEAT_SECONDS > LOST_SECONDS:
                host = f", probably {self.first}," if self.first else ""
                end_job(
                    f"the process that coordinates the ranks{host} has not been heard from for "
                    f"{LOST_SECONDS:.0f} s"
                )

    def leave(self) -> None:
        """Stop; the others see that this rank left in good order."""
        self.stop()
        with suppress(RuntimeError):  # the process that hosts the store may have left already
            self.store.set(f"beat/{self.rank}", _LEFT)

    def find_lost(self, seconds: float = LOST_SECONDS) -> list[int]:
        """Wait, at most this long, until it is clear which ranks are gone; there may be none."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with self.lock:
                silent = self.heartbeats.silent(time.monotonic(), 4 * BEAT_SECONDS)
            if silent:
                return silent
            time.sleep(BEAT_SECONDS / 4)
        return []

    def describe(self, rank: int) -> str:
        """A rank with its process and machine, and what it did last, as far as known."""
        return describe(self.store, rank, self.heartbeats.last_seen[rank].doing)

    def _keep(self) -> None:
        beats = 0
        while not self.over.wait(BEAT_SECONDS):
            beats += 1
            try:
                self._beat(beats)
                with self.lock:
                    self.heartbeats.read(self.store, time.monotonic())
                self.first = self.describe(0)
            except RuntimeError:
                if not self.over.is_set():
                    end_job("the process that coordinates the ranks is gone")
            self._judge()

    def _beat(self, number: int) -> None:
        beat = f"{number} {self.syncs} {self.moves} {int(self.paused)} {self.doing}"
        self.store.set(f"beat/{self.rank}", beat)

    def _judge(self) -> None:
        with self.lock:
            now = time.monotonic()
            silent, stuck = self.heartbeats.silent(now), self.heartbeats.stuck(now)
        for ranks, what in (
            (silent, f"has not been heard from for {LOST_SECONDS:.0f} s"),
            (stuck, f"has kept the others waiting for {STUCK_SECONDS:.0f} s"),
        ):
            if ranks and self.rank not in ranks and not self.over.is_set():
                names = ", ".join(self.describe(rank) for rank in ranks)
                self._kill_beside(ranks)
                end_job(f"{names} {what}")

    def _kill_beside(self, ranks: list[int]) -> None:
        """Kill such ranks of this machine, if their launcher would wait a long time for them.

        A process that is stopped heeds no signal but SIGKILL. Onsight's own launcher sees to it.
        """
        if LAUNCHED in os.environ:
            return
        with suppress(RuntimeError):
            for rank in ranks:
                if int(self.store.get(f"machine/{rank}")) == self.node:
                    kill(self.store, rank)


class LauncherWatchdog:
    """Watches the ranks from their launcher, and kills those that are stopped or stuck.

    Such a process heeds no signal but SIGKILL, and the launcher would wait a long time for it.
    """

    def __init__(self, store: Store, size: int) -> None:
        self.store = store
        self.heartbeats = Heartbeats(size, time.monotonic())
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._keep, name="launcher-watchdog", daemon=True)
        self.thread.start()

    def leave(self) -> None:
        """Stop watching."""
        self.over.set()
        self.thread.join()

    def _keep(self) -> None:
        while not self.over.wait(BEAT_SECONDS):
            self.heartbeats.read(self.store, time.monotonic())
            earlier = time.monotonic() - 2 * BEAT_SECONDS  # so that the ranks can report it first
            for rank in self.heartbeats.silent(earlier, LOST_SECONDS) + self.heartbeats.stuck(
                earlier
            ):
                kill(self.store, rank)

    def describe(self, rank: int) -> str:
        """A rank with its process and machine, and what it did by its very last heartbeat."""
        latest = Heartbeats(rank + 1, time.monotonic())
        latest.read(self.store, time.monotonic())
        return describe(self.store, rank, latest.last_seen[rank].doing)


def describe(store: Store, rank: int, doing: str) -> str:
    """A rank with its process and machine, as far as a store knows, and what it did last."""
    place = ""
    with suppress(RuntimeError):
        if store.check([f"place/{rank}"]):
            place = store.get(f"place/{rank}").decode()
    facts = ", ".join(part for part in (place, doing and f"last seen {doing}") if part)
    return f"rank {rank} ({facts})" if facts else f"rank {rank}"


def kill(store: Store, rank: int) -> None:
    """Kill a rank's process, which runs on this machine."""
    process = int(store.get(f"process/{rank}"))
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def end_job(reason: str) -> None:
    """Say why and end this process at once: its main thread may be waiting forever."""
    message = f"{reason}; the job was ended"
    if not leave_message(message, 1, lost=True) or LAUNCHED not in os.environ:
        print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(1)


def leave_message(message: str, exit_code: int, *, lost: bool = False, bug: bool = False) -> bool:
    """Tell torch's elastic launcher why this rank ends; False if there is no launcher.

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
