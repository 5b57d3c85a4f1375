"""The processes that run a script: forked from one that has torch loaded where that is possible."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from onsight_explain.child_command import child_command
from onsight_explain.errors import ScriptFailed
from onsight_explain.json_dataclasses import to_json
from onsight_explain.process.channel import Channel, Closed
from onsight_explain.process.ending import FAILED
from onsight_explain.process.failure import failure_words, nothing_seen
from onsight_explain.process.file_guard import kept_files
from onsight_explain.process.launch import GRACE_SECONDS, environment_for, last_words
from onsight_explain.process.leftovers import end_group, end_marked, new_mark
from onsight_explain.process.running import ScriptProcess
from onsight_explain.process.terminal import unattended_terminal
from onsight_explain.script.thread_settings import variables_of
from onsight_explain.script.trace import Request, Trace
from onsight_explain.tracing.sites import Site
from onsight_explain.tracing.window import Epoch
from onsight_explain.what_ifs.what_if import WhatIf

_CHILD = "onsight_explain.process.child"
_SERVER = "onsight_explain.process.server"

Start = Literal["late", "early", "fresh"]  # forked in the script's course, at its start, or not


class Processes:
    """Starts a script again and again, in the cheapest way there is; a context that ends them all.

    limit_seconds: for each process until it reports, at first from its start; training: where the
    training loader is made, once that is known.
    """

    def __init__(self, script: Path, args: list[str], steps: int, limit_seconds: float) -> None:
        self.script, self.args = script.resolve(), args
        self.steps, self.limit_seconds = steps, limit_seconds
        self._mark = new_mark()
        self._folder = tempfile.TemporaryDirectory(prefix="onsight-explain-")
        self._begun = time.time()
        self._inputs = ExitStack()
        self._popened: list[subprocess.Popen[bytes]] = []
        self._leaders: list[int] = []  # of the servers
        self._running: list[ScriptProcess] = []
        self._servers: dict[Start, Channel] = {}
        self._controls: list[Channel] = []
        self._count = 0
        self.training: Site | None = None

    def __enter__(self) -> "Processes":
        if sys.platform == "linux":
            ours, theirs = Channel.pair()
            leader = self._popen(_SERVER, [], theirs, {}, self._path("server.txt"))
            self._leaders.append(leader)
            self._servers["early"] = ours
            self._controls.append(ours)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for running in self._running:
            running.close()
        for leader in self._leaders:
            end_group(leader)
        for control in self._controls:
            control.close()
        end_marked(self._mark)
        for process in self._popened:
            process.wait()
        self._inputs.close()
        self._folder.cleanup()

    def prepare(self, is_late: bool) -> None:
        """Load torch once for all runs; is_late: and run the script until what-ifs matter.

        Where a fork is not possible, `start` uses the next way. Raises ScriptFailed if the script
        itself fails before it trains.
        """
        early = self._servers.get("early")
        if early is None or not self._is_ready(early):
            self._servers.pop("early", None)
            return
        if is_late:
            said = self._path("late.txt")
            late, leader = self._fork(early, self._request(), said, is_late=True)
            self._leaders.append(leader)
            self._controls.append(late)
            if self._is_ready(late, said):
                self._servers["late"] = late

    def start(
        self,
        what_ifs: Sequence[WhatIf] = (),
        seconds: float = 1.0,
        rate: float = 0.0,
        is_full: bool = False,
        timeline: Path | None = None,
        epoch: Epoch | None = None,
        first_limit_seconds: float = 0.0,
    ) -> ScriptProcess:
        """Begin to run the script with these changes; `trace` gives the first window.

        timeline: a file for it; epoch: to be measured as a whole; first_limit_seconds: until that
        window is over, if less than for later ones.
        """
        request = replace(
            self._request(),
            seconds=seconds,
            first_limit_seconds=first_limit_seconds,
            changes={one.name: one.value for one in what_ifs},
            is_full=is_full,
            rate=rate,
            epoch=epoch,
            timeline=timeline,
        )
        process = self._start(request, what_ifs)
        self._running.append(process)
        return process

    def run(
        self,
        what_ifs: Sequence[WhatIf] = (),
        seconds: float = 1.0,
        is_full: bool = False,
    ) -> Trace:
        """The trace of one window of the script with these changes. Raises ScriptFailed."""
        process = self.start(what_ifs, seconds, is_full=is_full)
        try:
            return process.trace()
        finally:
            process.close()

    def _start(self, request: Request, what_ifs: Sequence[WhatIf]) -> ScriptProcess:
        said = request.out.with_suffix(".txt")
        environment = {name: value for one in what_ifs for name, value in one.environment.items()}
        server = None if environment else self._server(any(one.rewrites for one in what_ifs))
        if server:
            channel, leader = self._fork(server, request, said, is_late=False)
            return ScriptProcess(request, channel, leader, said, lambda: _code(server, leader))
        asked = request.out.with_suffix(".request")
        asked.write_text(to_json(request))
        channel, theirs = Channel.pair()
        leader = self._popen(_CHILD, [str(asked)], theirs, environment, said)
        popened = self._popened[-1]
        return ScriptProcess(request, channel, leader, said, lambda: popened.wait(GRACE_SECONDS))

    def kept_files(self) -> list[Path]:
        """The user's files and folders that the script would have changed or deleted so far."""
        return kept_files(Path(self._folder.name), self._begun)

    def forget_servers(self) -> bool:
        """Start fresh processes from now on; False if that was so before."""
        had = bool(self._servers)
        self._servers.clear()
        return had

    def _server(self, rewrites: bool) -> Channel | None:
        late = None if rewrites else self._servers.get("late")
        return late or self._servers.get("early")

    def _request(self) -> Request:
        self._count += 1
        return Request(
            script=self.script,
            args=self.args,
            steps=self.steps,
            limit_seconds=self.limit_seconds,
            out=self._path(f"{self._count}.json"),
            training=self.training,
        )

    def _fork(
        self, server: Channel, request: Request, said: Path, is_late: bool
    ) -> tuple[Channel, int]:
        ours, theirs = Channel.pair()
        message = {"request": to_json(request), "said": str(said), "late": is_late}
        try:
            server.send(message, [theirs.end.fileno()])
            answer, _ = server.receive(GRACE_SECONDS)
        finally:
            theirs.close()
        return ours, answer["pid"]

    def _popen(
        self,
        module: str,
        words: list[str],
        theirs: Channel,
        environment: dict[str, str],
        said: Path,
    ) -> int:
        descriptor = theirs.end.fileno()
        with said.open("wb") as out:
            process = subprocess.Popen(
                [*child_command(module), *words, str(descriptor)],
                env=environment_for(variables_of(self.script) | environment | self._mark),
                stdin=self._inputs.enter_context(unattended_terminal()),
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=[descriptor],
                start_new_session=True,  # so that all its children can be ended with it
            )
        theirs.close()
        self._popened.append(process)
        return process.pid

    def _is_ready(self, server: Channel, said: Path | None = None) -> bool:
        """Whether a server can be asked to fork. said: by the script that it runs, if it does."""
        try:
            message, _ = server.receive(self.limit_seconds)
        except Closed:
            return False
        except TimeoutError:
            if said:
                words = nothing_seen("limit", self.limit_seconds, last_words(said))
                raise ScriptFailed(words) from None
            return False
        if message.get("ended") == "failed" and said:
            raise ScriptFailed(failure_words(last_words(said), FAILED, self.script.name))
        return bool(message.get("ready"))

    def _path(self, name: str) -> Path:
        return Path(self._folder.name) / name


def _code(server: Channel, pid: int) -> int | None:
    """The exit code of a process that a server has forked."""
    try:
        server.send({"code": pid})
        answer, _ = server.receive(GRACE_SECONDS)
    except (Closed, TimeoutError):
        return None
    code: int = answer["code"]
    return code
