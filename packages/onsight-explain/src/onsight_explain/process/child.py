"""The process that runs a user's script, keeps its files unchanged, and reports its training."""

import ast
import itertools
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial, wraps
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from onsight_explain.files import write_atomically
from onsight_explain.json_dataclasses import from_json, to_json
from onsight_explain.process.execution import (
    execute,
    flush_output,
    leave,
    prepare,
    print_error,
    print_traceback,
)
from onsight_explain.process.failure import FAILED, describe_sys_exit
from onsight_explain.process.observe import add_interval, describe_training
from onsight_explain.process.supervised import Channel, Closed
from onsight_explain.python_process import seconds_since_start
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.thread_settings import follow_affinity
from onsight_explain.script.trace import Ended, RunRequest, Trace
from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.device_time import DeviceTime, follow_device
from onsight_explain.tracing.patches import Patches
from onsight_explain.tracing.recorder import Recorder, StepWork
from onsight_explain.tracing.sites import Sites
from onsight_explain.tracing.timeline import TimelineRecorder
from onsight_explain.tracing.window import Epoch, MeasurementWindow, WindowProgress
from onsight_explain.what_ifs.what_if import make_what_ifs

_WARM_UP_STEPS = 2  # steps after the first, which allocates memory and chooses kernels
_WARM_UP_SECONDS = 0.25
_REWARM_STEPS, _REWARM_SECONDS = 2, 0.05  # if the process has been measured before
_HOPELESS_RATIO = 0.4  # fraction of the unchanged script's rate; slower changes are stopped early
_HOPELESS_SECONDS = 0.5
_REPORT_POLL_SECONDS = 0.05  # interval for checking reports of processes that the script started
_WATCHDOG_POLL_SECONDS = 0.5
# Modules whose processes serve others, such as a loader's workers.
_HELPER_MODULES = ("torch.utils.data.", "multiprocessing.", "concurrent.")


class ScriptRun:
    """One run of a script in this process; from `begin` on it trains only while it is measured."""

    current: ClassVar["ScriptRun | None"] = None

    def __init__(self, script: Path, channel: Channel | None = None) -> None:
        ScriptRun.current = self
        self.script = script
        self.process = os.getpid()
        self.request: RunRequest | None = None
        self.channel = channel
        self.hooks: Hooks | None = None
        self.is_subprocess = False  # started by the script itself

    def begin(
        self, request: RunRequest, channel: Channel | None = None, earlier_seconds: float = 0.0
    ) -> None:
        """Trace the training from now on, with the changes of the request.

        After the first window the run waits for requests on the channel; without one it ends.
        earlier_seconds: how long the script had run before this process was forked.
        """
        self.request, self.channel = request, channel
        self.earlier_seconds = earlier_seconds
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
        self.recorder.window.known_epoch = request.epoch
        self.recorder.window.warm_up_epochs = bool(request.epoch and request.epoch.has_evaluation)
        sites = self.recorder.sites
        self.timeline = TimelineRecorder(self.clock, sites) if request.timeline else None
        limit_seconds = request.first_limit_seconds or request.limit_seconds
        self.hooks = Hooks(
            self.recorder.patches,
            self.clock.is_elsewhere,
            lambda: self.recorder.forwards.is_evaluating,
            self.clock,
            self._is_training_line,
            first_step_due=time.monotonic() + limit_seconds,
        )
        self.work = StepWork()
        self.first_step_seconds = 0.0
        self.first: WindowProgress | None = None
        self.is_described = False
        for what_if in make_what_ifs(request.changes):
            what_if.install(self.hooks)
        self.hooks.install()
        self.recorder.install()
        watch_processes(self.recorder.patches, request, self._await_subprocess)
        if channel:
            os.register_at_fork(after_in_child=channel.close)  # or our end would stay open there
        self.watchdog = LimitWatchdog(channel, lambda: self.finish("limit"))
        self.watchdog.allow(limit_seconds)

    def execute(self) -> NoReturn:
        """Run the script until the process ends."""
        try:
            execute(self.script, self._rewrite)
        except SystemExit as exit_request:
            if exit_request.code and not self.has_measured:  # such as for wrong arguments
                self._fail(partial(print_error, describe_sys_exit(exit_request.code)))
        except BaseException as error:
            self._fail(partial(print_traceback, error, self.script))
        if self.request is None:  # this process has no training to trace
            leave(0)
        self.finish("script")

    def finish(self, ended: Ended) -> NoReturn:
        """Report and end the process at once, before the script can save anything."""
        if os.getpid() == self.process:  # not in a forked copy
            flush_output()
            if not self.is_subprocess or self._claim_report():
                self._report(ended)
            if self.is_subprocess:  # wait to be killed with the script, or it would go on and save
                threading.Event().wait()
        leave(0)

    @property
    def has_measured(self) -> bool:
        """Return whether there is something to report."""
        return self.request is not None and self.recorder.window.interval() is not None

    def _fail(self, print_reason: Callable[[], None]) -> NoReturn:
        print_reason()
        if self.channel and os.getpid() == self.process:
            self.channel.send({"ended": "failed"})
        leave(FAILED)

    def _is_training_line(self) -> bool:
        """Return whether the unchanged script trains from the loader created at this line."""
        training = self.request.training if self.request else None
        return training is not None and self.recorder.sites.origin().site == training

    def _rewrite(self, tree: ast.Module) -> dict[str, object]:
        """Apply what-ifs that change the source; return the names that it then needs."""
        if self.hooks is None:
            return {}
        names = self.hooks.rewrite(tree)
        follow_affinity(tree, self.recorder.patches)
        return names

    def _after_step(self, recorder: Recorder) -> None:
        assert self.request
        assert self.hooks
        if not self.first_step_seconds:
            self.first_step_seconds = self.earlier_seconds + seconds_since_start()
            self.first = recorder.read_progress()
            self.hooks.first_step_due = math.inf  # a later dataset may be cached as a whole
            self.device_time = follow_device(recorder.forwards.network, self.clock)
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
        """Report the window, then wait for the next request; its window starts at the next step."""
        assert self.request
        if not self.channel:
            self.finish(ended)
        self.watchdog.allow(float("inf"))
        self._report(ended)
        try:
            message, _ = self.channel.receive()
        except Closed:
            kill_own_group()
        self.watchdog.allow(self.request.limit_seconds)
        recorder = self.recorder
        recorder.window = MeasurementWindow(
            message["seconds"],
            self.request.steps,
            recorder.steps + _REWARM_STEPS,
            recorder.read_progress,
            _REWARM_SECONDS,
            Epoch(**message["epoch"]) if message["epoch"] else None,
        )

    def _report(self, ended: Ended) -> None:
        """Write the trace and notify the other end of the channel."""
        assert self.request
        trace = Trace(ended=ended, startup_seconds=self.first_step_seconds)
        with self.clock.within("data"):  # reading items for the report is no training
            interval = self.recorder.window.interval()
            if interval is None and ended == "slow" and self.first:
                interval = self.first, self.recorder.read_progress(), 0
            if interval:
                add_interval(trace, *interval)
                self._describe(trace)
        if trace.steps or not self.request.out.exists():  # a subprocess may have written it
            write_atomically(self.request.out, to_json(trace).encode())
        if self.channel:
            self.channel.send({"ended": ended})

    def _describe(self, trace: Trace) -> None:
        """Add the facts that are the same in every window; only the first has them."""
        assert self.request
        assert self.hooks
        if self.is_described:
            return
        self.is_described = True
        is_full = self.request.is_full and trace.ended != "limit"
        describe_training(trace, self.recorder, is_full)
        trace.flops, trace.bytes = self.work.counted
        trace.notes += self.hooks.notes
        if self.device_time:
            trace.device_phases = self.device_time.seconds()
        interval = self.recorder.window.interval()
        if self.timeline and self.request.timeline and interval:
            first, last, _ = interval
            timeline = self.timeline.timeline(first.time, last.time, self.device_time)
            write_atomically(self.request.timeline, to_json(timeline).encode())

    def _await_subprocess(self) -> None:
        """End this process as soon as a process that the script started has reported."""
        assert self.request
        files = self.request.out, self._claim_file

        def wait() -> None:
            while not all(file.exists() for file in files):
                time.sleep(_REPORT_POLL_SECONDS)
            self.finish("script")

        threading.Thread(target=wait, name="onsight-processes", daemon=True).start()

    def _claim_report(self) -> bool:
        """Return whether this is the first of the script's processes to report."""
        try:
            self._claim_file.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    @property
    def _claim_file(self) -> Path:
        assert self.request
        return self.request.out.with_suffix(".claimed")

    def _is_hopeless(self, recorder: Recorder) -> bool:
        """Return whether the first steps were so slow that measuring more is pointless."""
        assert self.request
        assert self.first
        if self.request.epoch and self.request.epoch.has_evaluation:  # it may only be slow later
            return False
        elapsed = self.clock.now - self.first.time
        images = recorder.forwards.images - self.first.images
        return (
            elapsed > _HOPELESS_SECONDS and images < _HOPELESS_RATIO * self.request.rate * elapsed
        )


class LimitWatchdog:
    """A thread that ends the process at its time limit, or when the channel's other end closes."""

    def __init__(self, channel: Channel | None, at_limit: Callable[[], NoReturn]) -> None:
        self.channel = channel
        self.at_limit = at_limit  # called in the thread
        self._deadline = float("inf")
        threading.Thread(target=self._watch, name="onsight-watchdog", daemon=True).start()

    def allow(self, seconds: float) -> None:
        """Set the time limit, counted from now; infinity while the process is paused."""
        self._deadline = time.monotonic() + seconds

    def _watch(self) -> None:
        poll = select.poll()
        if self.channel:
            poll.register(self.channel.end, 0)  # reports only that the other end was closed
        while True:
            if poll.poll(_WATCHDOG_POLL_SECONDS * 1000):
                kill_own_group()
            if time.monotonic() > self._deadline:
                self.at_limit()


def kill_own_group() -> NoReturn:
    """End this process and, if it leads a group, the others in it, such as its workers."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def watch_processes(patches: Patches, request: RunRequest, on_first: Callable[[], None]) -> None:
    """Watch the function of every process that multiprocessing starts from now on.

    `on_first` is called in this process when the first one starts.
    """
    original = BaseProcess.start
    count = itertools.count()

    @wraps(original)
    def start(process: BaseProcess) -> None:
        target = vars(process).get("_target")
        module = str(getattr(target, "__module__", ""))
        if target is not None and not module.startswith(_HELPER_MODULES):
            vars(process)["_target"] = partial(run_target, request, target)
            if not next(count):
                on_first()
        original(process)

    patches.put(BaseProcess, "start", start)


def run_target(
    request: RunRequest, target: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call a function of the script and watch it, in a process that the script has started."""
    if ScriptRun.current and ScriptRun.current.request:  # from which this one was forked
        ScriptRun.current.recorder.undo()
    run = ScriptRun(request.script)
    run.is_subprocess = True
    run.begin(request)
    result = target(*args, **kwargs)
    if run.has_measured:
        run.finish("script")
    return result


def main() -> NoReturn:
    """Run the request in the file named on the command line; a channel may follow it."""
    request = from_json(RunRequest, Path(sys.argv[1]).read_bytes())
    channel = Channel.inherited(int(sys.argv[2])) if len(sys.argv) > 2 else None
    prepare(request.script, request.args, request.out.parent)
    run = ScriptRun(request.script)
    run.begin(request, channel)
    run.execute()


if __name__ == "__main__":
    # Under its name: `run_target` is pickled, and `Sites.origin` must recognize our frames.
    from onsight_explain.process import child

    child.main()
