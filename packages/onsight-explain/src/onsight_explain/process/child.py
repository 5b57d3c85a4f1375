"""The process that runs a user's script, whose files stay unchanged, and reports what it saw."""

import ast
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from onsight_explain.files import write_atomically
from onsight_explain.json_dataclasses import from_json, to_json
from onsight_explain.process.channel import Channel, Closed
from onsight_explain.process.ending import (
    FAILED,
    exit_words,
    flush_output,
    leave,
    say,
    tell_failure,
)
from onsight_explain.process.executing import execute, prepare
from onsight_explain.process.leash import Leash, end_with_children
from onsight_explain.process.observed import add_stretch, complete
from onsight_explain.process.spawned import watch_processes
from onsight_explain.process.work import StepWork
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.thread_settings import follow_affinity
from onsight_explain.script.trace import Ended, Request, Trace
from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.devicetime import DeviceTime, followed
from onsight_explain.tracing.recorder import Recorder
from onsight_explain.tracing.sites import Sites
from onsight_explain.tracing.timeline import TimelineRecorder
from onsight_explain.tracing.window import Epoch, Snapshot, Window
from onsight_explain.uptime import seconds_since_start
from onsight_explain.what_ifs.table import what_ifs_from

_WARM_UP_STEPS = 2  # after the first, which allocates memory and chooses kernels
_WARM_UP_SECONDS = 0.25
_AGAIN_STEPS, _AGAIN_SECONDS = 2, 0.05  # of warming up, if the process was warm already
_HOPELESS = 0.4  # times the script's own rate: slower changes are not measured to the end
_HOPELESS_SECONDS = 0.5
_LOOK_SECONDS = 0.05  # between two looks at what processes of the script have reported


class ScriptRun:
    """One run of a script in this process, from `begin`; it trains only while it is measured."""

    current: ClassVar["ScriptRun | None"] = None

    def __init__(self, script: Path, channel: Channel | None = None) -> None:
        ScriptRun.current = self
        self.script = script
        self.process = os.getpid()
        self.request: Request | None = None
        self.channel = channel
        self.hooks: Hooks | None = None
        self.is_part = False  # one of the processes that a script starts itself

    def begin(self, request: Request, channel: Channel | None = None, earlier: float = 0.0) -> None:
        """Follow the training from here on, with the changes of the request.

        channel: where to ask what to do after the first window; without one, the process ends
        then. earlier: seconds that the script had run for before this process was forked.
        """
        self.request, self.channel, self.earlier = request, channel, earlier
        self.process = os.getpid()
        self.device_time: DeviceTime | None = None
        self.clock = PhaseClock()
        self.recorder = Recorder(
            self.clock,
            Sites(self.script.parent),
            request.seconds,
            request.steps,
            _WARM_UP_STEPS,
            self._after_step,
        )
        self.recorder.window.warm_up_seconds = _WARM_UP_SECONDS
        self.recorder.window.known = request.epoch
        self.recorder.window.warm_up_epochs = bool(request.epoch and request.epoch.has_evaluation)
        self.timeline: TimelineRecorder | None = None
        if request.timeline:
            self.timeline = TimelineRecorder(self.clock, self.recorder.sites)
        self.hooks = Hooks(
            self.recorder.patches,
            self.clock.is_elsewhere,
            lambda: self.recorder.forwards.is_evaluating,
            self.clock,
            self._is_training_loader,
        )
        self.work = StepWork()
        self.first_step_seconds = 0.0
        self.first: Snapshot | None = None
        self.is_described = False
        for what_if in what_ifs_from(request.changes):
            what_if.install(self.hooks)
        self.hooks.install()
        self.recorder.install()
        watch_processes(
            self.recorder.patches, partial(run_function, request), self._process_started
        )
        if channel:
            os.register_at_fork(after_in_child=channel.close)  # or our end would seem to live on
        self.leash = Leash(channel, lambda: self.finish("limit"))
        self.leash.lengthen(request.first_limit_seconds or request.limit_seconds)

    def execute(self) -> NoReturn:
        """Run the script until the process ends."""
        try:
            execute(self.script, self._rewrite)
        except SystemExit as ended:
            if ended.code and not self.has_measured:  # as of wrong arguments
                self._fail(partial(say, exit_words(ended.code)))
        except BaseException as error:
            self._fail(partial(tell_failure, error, self.script))
        if self.request is None:  # it has no training that could be followed
            leave(0)
        self.finish("script")

    def finish(self, ended: Ended) -> NoReturn:
        """Report what was seen and end the process at once, before the script can save anything."""
        if os.getpid() == self.process:  # and not in a copy of it
            flush_output()
            if not self.is_part or self._is_first_part():
                self._report(ended)
            if self.is_part:  # to be ended with the script, which would otherwise go on and save
                threading.Event().wait()
        leave(0)

    @property
    def has_measured(self) -> bool:
        """Whether there is something to report."""
        return self.request is not None and self.recorder.window.stretch() is not None

    def _fail(self, tell: Callable[[], None]) -> NoReturn:
        tell()
        if self.channel and os.getpid() == self.process:
            self.channel.send({"ended": "failed"})
        leave(FAILED)

    def _is_training_loader(self) -> bool:
        """Whether a loader is made at the line of the one that the unchanged script trains from."""
        known = self.request.training if self.request else None
        return known is not None and self.recorder.sites.made().site == known

    def _rewrite(self, tree: ast.Module) -> dict[str, object]:
        """What what-ifs change in the text, once they are there; the names that it needs then."""
        if self.hooks is None:
            return {}
        names = self.hooks.rewrite(tree)
        follow_affinity(tree, self.recorder.patches)
        return names

    def _after_step(self, recorder: Recorder) -> None:
        assert self.request
        if not self.first_step_seconds:
            self.first_step_seconds = self.earlier + seconds_since_start()
            self.first = recorder.look()
            self.device_time = followed(recorder.forwards.network, self.clock)
        if self.device_time:
            self.device_time.step(recorder.steps, self.clock.phase)
        if self.timeline:
            self.timeline.step(recorder.steps)
        if not recorder.window.is_over:
            if self.request.rate and not self.is_described and self._is_hopeless(recorder):
                self._pause("slow")
            return
        if not self.request.is_full or self.work.is_known(recorder):
            self._pause("window")

    def _pause(self, ended: Ended) -> None:
        """Report, then wait to be asked for another window, which begins with the next step."""
        assert self.request
        if not self.channel:
            self.finish(ended)
        self.leash.lengthen(float("inf"))
        self._report(ended)
        try:
            asked, _ = self.channel.receive()
        except Closed:
            end_with_children()
        self.leash.lengthen(self.request.limit_seconds)
        done, look = self.recorder.steps, self.recorder.look
        epoch = Epoch(**asked["epoch"]) if asked["epoch"] else None
        self.recorder.window = Window(
            asked["seconds"], self.request.steps, done + _AGAIN_STEPS, look, _AGAIN_SECONDS, epoch
        )

    def _report(self, ended: Ended) -> None:
        """Write down what was seen, and tell the other end that it is there."""
        assert self.request
        trace = Trace(ended=ended, startup_seconds=self.first_step_seconds)
        with self.clock.within("data"):  # what is looked at now is not the training
            stretch = self.recorder.window.stretch()
            if stretch is None and ended == "slow" and self.first:
                stretch = self.first, self.recorder.look(), 0
            if stretch:
                add_stretch(trace, *stretch)
                self._describe(trace)
        if trace.steps or not self.request.out.exists():  # a process of the script may have written
            write_atomically(self.request.out, to_json(trace).encode())
        if self.channel:
            self.channel.send({"ended": ended})

    def _describe(self, trace: Trace) -> None:
        """Add what does not change from one window to the next, in the first of them."""
        assert self.request
        assert self.hooks
        if self.is_described:
            return
        self.is_described = True
        is_full = self.request.is_full and trace.ended != "limit"
        complete(trace, self.recorder, is_full)
        trace.flops, trace.bytes = self.work.counted
        trace.notes += self.hooks.notes
        if self.device_time:
            trace.device_phases = self.device_time.seconds()
        stretch = self.recorder.window.stretch()
        if self.timeline and self.request.timeline and stretch:
            first, last, _ = stretch
            found = self.timeline.timeline(first.moment, last.moment, self.device_time)
            write_atomically(self.request.timeline, to_json(found).encode())

    def _process_started(self) -> None:
        """End this process as soon as one of those that it started has reported."""
        assert self.request
        files = self.request.out, self._claim

        def wait() -> None:
            while not all(file.exists() for file in files):
                time.sleep(_LOOK_SECONDS)
            self.finish("script")

        threading.Thread(target=wait, name="onsight-processes", daemon=True).start()

    def _is_first_part(self) -> bool:
        """Whether no other process that the script started reports; several may train together."""
        try:
            self._claim.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    @property
    def _claim(self) -> Path:
        """The file by which a process that the script started claims the report for itself."""
        assert self.request
        return self.request.out.with_suffix(".claimed")

    def _is_hopeless(self, recorder: Recorder) -> bool:
        """Whether the first steps were so slow that more of them would show nothing else."""
        assert self.request
        assert self.first
        if self.request.epoch and self.request.epoch.has_evaluation:  # slow only after one
            return False
        elapsed = self.clock.now - self.first.moment
        images = recorder.forwards.images - self.first.images
        return elapsed > _HOPELESS_SECONDS and images < _HOPELESS * self.request.rate * elapsed


def run_function(request: Request, function: Callable[[], Any]) -> Any:
    """Watch a function of the script, in a process that the script has started."""
    if ScriptRun.current and ScriptRun.current.request:  # from which this one was forked
        ScriptRun.current.recorder.undo()
    run = ScriptRun(request.script)
    run.is_part = True
    run.begin(request)
    returned = function()
    if run.has_measured:
        run.finish("script")
    return returned


def main() -> NoReturn:
    """Run the request in the file named on the command line; a second word is the channel."""
    request = from_json(Request, Path(sys.argv[1]).read_bytes())
    channel = Channel.inherited(int(sys.argv[2])) if len(sys.argv) > 2 else None
    prepare(request.script, request.args, request.out.parent)
    run = ScriptRun(request.script)
    run.begin(request, channel)
    run.execute()


if __name__ == "__main__":
    from onsight_explain.process import child  # under its name, so that it can be pickled

    child.main()
