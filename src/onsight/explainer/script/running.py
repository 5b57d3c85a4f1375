"""A run of a script: one process, or one for each rank, measured, stopped and ended together."""

import contextlib
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from onsight.errors import ScriptFailed
from onsight.explainer.script.channel import Channel, Closed
from onsight.explainer.script.ending import FAILED
from onsight.explainer.script.failure import failure_words
from onsight.explainer.script.launch import GRACE_SECONDS, last_words
from onsight.explainer.script.leftovers import end_group
from onsight.explainer.script.ranks import gather
from onsight.explainer.script.trace import Trace
from onsight.explainer.tracing.window import Epoch


@dataclass(frozen=True)
class Running:
    """A process of a run. said: where its output goes; code: waits for its exit code."""

    channel: Channel
    leader: int
    said: Path
    script: str
    code: Callable[[], int | None]

    def hear(self) -> str:
        """By what its window ended, once it has said so. Raises ScriptFailed."""
        try:
            message, _ = self.channel.receive(GRACE_SECONDS)
        except (Closed, TimeoutError):
            words = failure_words(last_words(self.said), self.code(), self.script)
            raise ScriptFailed(words) from None
        ended: str = message["ended"]
        if ended == "failed":
            raise ScriptFailed(failure_words(last_words(self.said), FAILED, self.script))
        return ended


class ScriptProcess:
    """The processes of one run; they are stopped whenever they are not measured."""

    def __init__(
        self, out: Path, ranks: Sequence[Running], limit_seconds: float, first_limit_seconds: float
    ) -> None:
        self.out, self.ranks, self.limit_seconds = out, ranks, limit_seconds
        self._within = first_limit_seconds or limit_seconds
        self.is_over = False

    def trace(self) -> Trace:
        """What was seen in the window that is under way, by all ranks. Raises ScriptFailed."""
        try:
            endings = self._hear_all()
        except ScriptFailed:
            self.close()
            raise
        self._within = self.limit_seconds
        # Not before all have reported: a rank may still send what another one waits for.
        if endings <= {"window", "slow"}:
            self._signal(signal.SIGSTOP)
        else:
            self.close()
        trace = gather(self.out)
        assert trace
        if not trace.images:
            trace.last_words = last_words(self.ranks[0].said)
        return trace

    def measure(self, seconds: float, epoch: Epoch | None = None) -> Trace:
        """Let it train for so long again, and for an epoch if one is given. Raises ScriptFailed."""
        self._signal(signal.SIGCONT)
        for one in self.ranks:
            with contextlib.suppress(Closed):  # `trace` says why
                one.channel.send({"seconds": seconds, "epoch": epoch and asdict(epoch)})
        return self.trace()

    def close(self) -> None:
        """End it, with everything that it started."""
        if self.is_over:
            return
        self.is_over = True
        self._signal(signal.SIGKILL)
        for one in self.ranks:
            one.channel.close()

    def _hear_all(self) -> set[str]:
        """By what each process ended its window. Raises ScriptFailed as soon as one has failed."""
        endings = set()
        until = time.monotonic() + self._within + GRACE_SECONDS
        with selectors.DefaultSelector() as waiting:
            for rank, one in enumerate(self.ranks):
                waiting.register(one.channel.end, selectors.EVENT_READ, rank)
            while waiting.get_map():
                ready = waiting.select(max(0.0, until - time.monotonic()))
                if not ready:
                    words = failure_words(
                        last_words(self.ranks[0].said), None, self.ranks[0].script
                    )
                    raise ScriptFailed(words)
                for key, _ in ready:
                    endings.add(self._hear(key.data))
                    waiting.unregister(key.fileobj)
        return endings

    def _hear(self, rank: int) -> str:
        try:
            return self.ranks[rank].hear()
        except ScriptFailed as error:
            if len(self.ranks) == 1:
                raise
            raise ScriptFailed(f"rank {rank}: {error}") from None

    def _signal(self, number: int) -> None:
        for one in self.ranks:
            end_group(one.leader, number)
