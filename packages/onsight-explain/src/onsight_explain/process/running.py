"""A run of a script: measured, stopped meanwhile, and ended with everything that it started."""

import contextlib
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from onsight_explain.errors import ScriptFailed
from onsight_explain.json_dataclasses import from_json
from onsight_explain.process.channel import Channel, Closed
from onsight_explain.process.ending import FAILED
from onsight_explain.process.failure import failure_words
from onsight_explain.process.file_guard import remove_copies
from onsight_explain.process.launch import GRACE_SECONDS, last_words
from onsight_explain.process.leftovers import end_group
from onsight_explain.script.trace import Request, Trace
from onsight_explain.tracing.window import Epoch


class ScriptProcess:
    """The process of one run; it is stopped whenever it is not measured.

    said: where its output goes; code: waits for its exit code.
    """

    def __init__(
        self,
        request: Request,
        channel: Channel,
        leader: int,
        said: Path,
        code: Callable[[], int | None],
    ) -> None:
        self.request, self.channel, self.leader = request, channel, leader
        self.said, self.code = said, code
        self._within = request.first_limit_seconds or request.limit_seconds
        self.is_over = False

    def trace(self) -> Trace:
        """What was seen in the window that is under way. Raises ScriptFailed."""
        try:
            ended = self._hear()
        except ScriptFailed:
            self.close()
            raise
        self._within = self.request.limit_seconds
        if ended in ("window", "slow"):
            self._signal(signal.SIGSTOP)
        else:
            self.close()
        trace = from_json(Trace, self.request.out.read_bytes())
        if not trace.images:
            trace.last_words = last_words(self.said)
        return trace

    def measure(self, seconds: float, epoch: Epoch | None = None) -> Trace:
        """Let it train for so long again, and for an epoch if one is given. Raises ScriptFailed."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(Closed):  # `trace` says why
            self.channel.send({"seconds": seconds, "epoch": epoch and asdict(epoch)})
        return self.trace()

    def close(self) -> None:
        """End it, with everything that it started."""
        if self.is_over:
            return
        self.is_over = True
        self._signal(signal.SIGKILL)
        self.channel.close()
        remove_copies(self.request.out.parent, self.leader)

    def _hear(self) -> str:
        """By what its window ended, once it has said so. Raises ScriptFailed."""
        try:
            message, _ = self.channel.receive(self._within + GRACE_SECONDS)
        except TimeoutError:
            raise self._failed(None) from None
        except Closed:
            raise self._failed(self.code()) from None
        ended: str = message["ended"]
        if ended == "failed":
            raise self._failed(FAILED)
        return ended

    def _failed(self, code: int | None) -> ScriptFailed:
        return ScriptFailed(failure_words(last_words(self.said), code, self.request.script.name))

    def _signal(self, number: int) -> None:
        end_group(self.leader, number)
