"""The same run in a process of its own, started without some variables of the environment."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from onsight.config import Config
from onsight.explainer.own.changes import FlagChange, Unset
from onsight_explain.process.supervised import Channel, Closed
from onsight_explain.python_process import child_command
from onsight_explain.search import TrialFailed

_CHILD = "onsight.explainer.own.child"
_START_SECONDS, _GRACE_SECONDS = 120.0, 60.0


class FreshRun:
    """Opens DATA in a process that begins when it is first measured, and times its step there.

    config: as asked for, because other choices may be best without the variables.
    """

    def __init__(self, data: str, config: Config, without: Unset) -> None:
        self.data, self.config, self.without = data, config, without
        self._folder = tempfile.TemporaryDirectory(prefix="onsight-explain-")
        self._said = Path(self._folder.name) / "said.txt"
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def measure(self, flags: Iterable[FlagChange], seconds: float) -> float:
        """Images per second with these flags, over about so long. Raises Untried."""
        try:
            channel = self._channel or self._started()
            named = {one.group: one.value for one in flags}
            channel.send({"flags": named, "seconds": seconds})
            answer, _ = channel.receive(seconds + _GRACE_SECONDS)
        except (Closed, TimeoutError):
            raise TrialFailed(self._last_words()) from None
        if "problem" in answer:
            raise TrialFailed(answer["problem"])
        rate: float = answer["rate"]
        return rate

    def close(self) -> None:
        """End the process, if there is one."""
        if self._channel:
            self._channel.close()
        if self._process:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def _started(self) -> Channel:
        """The channel of the process, once it has opened the run. Raises Closed, TimeoutError."""
        asked = Path(self._folder.name) / "asked.json"
        given = self.config.model_dump(mode="json", exclude_unset=True)
        asked.write_text(json.dumps({"data": self.data, "config": given}), encoding="utf-8")
        self._channel, theirs = Channel.pair()
        descriptor, unset = theirs.end.fileno(), self.without.names
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [*child_command(_CHILD), str(asked), str(descriptor)],
                env={name: one for name, one in os.environ.items() if name not in unset},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                pass_fds=[descriptor],
                start_new_session=True,  # Ctrl-C is for us, and we end it
            )
        theirs.close()
        self._channel.receive(_START_SECONDS)
        return self._channel

    def _last_words(self) -> str:
        said = self._said.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((one for one in reversed(said) if one.strip()), "its process did not answer")
