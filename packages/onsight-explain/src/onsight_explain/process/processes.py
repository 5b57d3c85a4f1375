"""Run a script in processes that are forked, where possible, from one with torch loaded."""

import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from onsight_explain.errors import ScriptFailed
from onsight_explain.json_dataclasses import from_json, to_json
from onsight_explain.process.failure import (
    FAILED,
    describe_failure,
    describe_no_training,
    read_last_output,
)
from onsight_explain.process.file_guard import remove_copies, unchanged_files
from onsight_explain.process.supervised import (
    GRACE_SECONDS,
    Channel,
    Closed,
    SupervisedChild,
    kill_marked,
    new_mark,
    signal_group,
)
from onsight_explain.script.thread_settings import read_variables, script_environment
from onsight_explain.script.trace import RunRequest, Trace
from onsight_explain.tracing.sites import Site
from onsight_explain.tracing.window import Epoch
from onsight_explain.what_ifs.what_if import WhatIf

_CHILD = "onsight_explain.process.child"
_SERVER = "onsight_explain.process.server"

ServerKind = Literal["early", "late"]  # forks at the script's start, or where what-ifs matter


class Processes:
    """Starts a script repeatedly, in the cheapest way possible; a context that ends all runs."""

    def __init__(self, script: Path, args: list[str], steps: int, limit_seconds: float) -> None:
        self.script, self.args = script.resolve(), args
        self.steps = steps
        self.limit_seconds = limit_seconds  # time limit for a process to report
        self.training: Site | None = None  # where the training loader is created, once known
        self._mark = new_mark()
        self._folder = tempfile.TemporaryDirectory(prefix="onsight-explain-")
        self._began = time.time()
        self._children: list[SupervisedChild] = []
        self._forked_servers: list[int] = []
        self._runs: list[ScriptProcess] = []
        self._servers: dict[ServerKind, Channel] = {}  # the usable servers
        self._controls: list[Channel] = []  # one per server
        self._count = 0

    def __enter__(self) -> "Processes":
        if sys.platform == "linux":
            ours, theirs = Channel.pair()
            self._start_child(_SERVER, [], theirs, {}, self._path("server.txt"))
            self._servers["early"] = ours
            self._controls.append(ours)
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._runs:
            run.close()
        for leader in self._forked_servers:
            signal_group(leader)
        for child in self._children:
            child.kill()
        for control in self._controls:
            control.close()
        kill_marked(self._mark)
        self._folder.cleanup()

    def prepare(self, is_late: bool) -> None:
        """Load torch once for all runs; if `is_late`, also run the script until what-ifs matter.

        Where a fork is not possible, `start` falls back to the next way. Raises ScriptFailed if the
        script itself fails before it trains.
        """
        early = self._servers.get("early")
        if early is None or not self._is_ready(early):
            self._servers.pop("early", None)
            return
        if is_late:
            output = self._path("late.txt")
            late, leader = self._fork(early, self._request(), output, is_late=True)
            self._forked_servers.append(leader)
            self._controls.append(late)
            if self._is_ready(late, output):
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
    ) -> "ScriptProcess":
        """Start the script with these changes; `trace` then waits for the first window.

        For the other parameters see `RunRequest`.
        """
        request = replace(
            self._request(),
            seconds=seconds,
            first_limit_seconds=first_limit_seconds,
            changes={what_if.name: what_if.value for what_if in what_ifs},
            is_full=is_full,
            rate=rate,
            epoch=epoch,
            timeline=timeline,
        )
        run = self._start(request, what_ifs)
        self._runs.append(run)
        return run

    def unchanged_files(self) -> list[Path]:
        """Return the user's files and folders that the script tried to change or delete."""
        return unchanged_files(Path(self._folder.name), self._began)

    def forget_servers(self) -> bool:
        """Start unforked processes from now on; return False if that is so already."""
        had_servers = bool(self._servers)
        self._servers.clear()
        return had_servers

    def _start(self, request: RunRequest, what_ifs: Sequence[WhatIf]) -> "ScriptProcess":
        output = request.out.with_suffix(".txt")
        environment = {
            name: value for what_if in what_ifs for name, value in what_if.environment.items()
        }
        rewrites = any(what_if.rewrites_source for what_if in what_ifs)
        late = None if rewrites else self._servers.get("late")
        server = None if environment else late or self._servers.get("early")
        if server:
            channel, leader = self._fork(server, request, output, is_late=False)
            return ScriptProcess(
                request, channel, leader, output, lambda: _exit_code(server, leader)
            )
        request_file = request.out.with_suffix(".request")
        request_file.write_text(to_json(request))
        channel, theirs = Channel.pair()
        child = self._start_child(_CHILD, [str(request_file)], theirs, environment, output)
        return ScriptProcess(request, channel, child.pid, output, lambda: child.wait(GRACE_SECONDS))

    def _request(self) -> RunRequest:
        self._count += 1
        return RunRequest(
            script=self.script,
            args=self.args,
            steps=self.steps,
            limit_seconds=self.limit_seconds,
            out=self._path(f"{self._count}.json"),
            training=self.training,
        )

    def _fork(
        self, server: Channel, request: RunRequest, output: Path, is_late: bool
    ) -> tuple[Channel, int]:
        ours, theirs = Channel.pair()
        message = {"request": to_json(request), "output": str(output), "is_late": is_late}
        try:
            server.send(message, [theirs.end.fileno()])
            answer, _ = server.receive(GRACE_SECONDS)
        finally:
            theirs.close()
        return ours, answer["pid"]

    def _start_child(
        self,
        module: str,
        args: list[str],
        channel: Channel,
        environment: dict[str, str],
        output: Path,
    ) -> SupervisedChild:
        child = SupervisedChild(
            module,
            args,
            output=output,
            environment=script_environment(read_variables(self.script) | environment),
            channel=channel,
            mark=self._mark,
            has_terminal=True,
        )
        self._children.append(child)
        return child

    def _is_ready(self, server: Channel, output: Path | None = None) -> bool:
        """Return whether a server can fork; `output` is its script's output, if it runs one."""
        try:
            message, _ = server.receive(self.limit_seconds)
        except Closed:
            return False
        except TimeoutError:
            if output:
                last_output = read_last_output(output)
                problem = describe_no_training("limit", self.limit_seconds, last_output)
                raise ScriptFailed(problem) from None
            return False
        if message.get("ended") == "failed" and output:
            raise ScriptFailed(describe_failure(read_last_output(output), FAILED, self.script.name))
        return bool(message.get("ready"))

    def _path(self, name: str) -> Path:
        return Path(self._folder.name) / name


@dataclass
class ScriptProcess:
    """The process of one run, which is suspended whenever it is not measured."""

    request: RunRequest
    channel: Channel
    leader: int  # the process, and its group
    output: Path
    wait_for_exit: Callable[[], int | None]  # returns its exit code
    is_over: bool = False

    def __post_init__(self) -> None:
        self._limit_seconds = self.request.first_limit_seconds or self.request.limit_seconds

    def trace(self) -> Trace:
        """Return the trace of the current window once it has ended. Raises ScriptFailed."""
        try:
            ended = self._wait_for_report()
        except ScriptFailed:
            self.close()
            raise
        self._limit_seconds = self.request.limit_seconds
        if ended in ("window", "slow"):
            signal_group(self.leader, signal.SIGSTOP)
        else:
            self.close()
        trace = from_json(Trace, self.request.out.read_bytes())
        if not trace.images:
            trace.last_output = read_last_output(self.output)
        return trace

    def measure(self, seconds: float, epoch: Epoch | None = None) -> Trace:
        """Resume training and measure another window, of whole epochs if one is given.

        Raises ScriptFailed.
        """
        signal_group(self.leader, signal.SIGCONT)
        with suppress(Closed):  # `trace` reports why
            self.channel.send({"seconds": seconds, "epoch": epoch and asdict(epoch)})
        return self.trace()

    def close(self) -> None:
        """End the process and all of its descendants."""
        if self.is_over:
            return
        self.is_over = True
        signal_group(self.leader)
        self.channel.close()
        remove_copies(self.request.out.parent, self.leader)

    def _wait_for_report(self) -> str:
        """Return the reason why the current window ended. Raises ScriptFailed."""
        try:
            message, _ = self.channel.receive(self._limit_seconds + GRACE_SECONDS)
        except TimeoutError:
            raise self._failure(None) from None
        except Closed:
            raise self._failure(self.wait_for_exit()) from None
        ended: str = message["ended"]
        if ended == "failed":
            raise self._failure(FAILED)
        return ended

    def _failure(self, code: int | None) -> ScriptFailed:
        output = read_last_output(self.output)
        return ScriptFailed(describe_failure(output, code, self.request.script.name))


def _exit_code(server: Channel, pid: int) -> int | None:
    """Return the exit code of a process that a server has forked; None if it is unknown."""
    try:
        server.send({"code": pid})
        answer, _ = server.receive(GRACE_SECONDS)
    except (Closed, TimeoutError):
        return None
    code: int = answer["code"]
    return code
