"""The process that runs a user's script, whose files stay unchanged, and reports what it saw."""

import ast
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, NoReturn

from torch import nn

from onsight.accelerator import has_streams
from onsight.explainer.script.ending import (
    FAILED,
    exit_words,
    leave,
    say,
    show_in_tracebacks,
    tell_failure,
)
from onsight.explainer.script.hooks import Hooks
from onsight.explainer.script.notebook import SUFFIX, units_of
from onsight.explainer.script.observed import complete
from onsight.explainer.script.peers import Peers
from onsight.explainer.script.seeding import seed_everything
from onsight.explainer.script.spawned import watch_processes
from onsight.explainer.script.stand_ins import stand_ins
from onsight.explainer.script.trace import Request, Trace
from onsight.explainer.tracing.clock import PhaseClock
from onsight.explainer.tracing.communication import Communication
from onsight.explainer.tracing.counting import StepCounter
from onsight.explainer.tracing.devicetime import DeviceTime
from onsight.explainer.tracing.recorder import Recorder
from onsight.explainer.tracing.sites import Sites
from onsight.explainer.tracing.timeline import TimelineRecorder
from onsight.explainer.what_ifs.table import what_ifs_from
from onsight.files import write_atomically
from onsight.hardware.usage import seconds_since_start

Ended = Literal["window", "script", "limit"]

_WARM_UP_STEPS = 3
_COUNTS = 3  # attempts to count a step without an evaluation in it


class ScriptRun:
    """One bounded run of a script in this process."""

    current: ClassVar["ScriptRun | None"] = None

    def __init__(self, request: Request) -> None:
        self.request = request
        self.device_time: DeviceTime | None = None
        self.clock = PhaseClock()
        self.recorder = Recorder(
            self.clock,
            Sites(request.script.parent),
            request.seconds,
            request.steps,
            _WARM_UP_STEPS,
            self._after_step,
        )
        self.hooks = Hooks(
            self.recorder.patches, self.clock.is_elsewhere, self.recorder.forwards.is_evaluation
        )
        self.counter: StepCounter | None = None
        self.counted = (0, 0)
        self.attempts = 0
        self.evaluated = 0
        self.first_step_seconds = 0.0
        self.timeline: TimelineRecorder | None = None
        if request.timelines:
            self.timeline = TimelineRecorder(self.clock, self.recorder.sites)
        self.process = os.getpid()
        self.peers = Peers(request.out)
        self.has_reported = False

    def run(self) -> NoReturn:
        """Run the script until the window closes or the script ends."""
        self.watch()
        try:
            self._execute()
        except SystemExit as ended:
            if ended.code and not self.has_measured:  # as of wrong arguments
                say(exit_words(ended.code))
                leave(FAILED)
        except BaseException as error:
            if not self.recorder.window.is_over:  # then it fails because another rank has ended
                tell_failure(error, self.request.script)
                leave(FAILED)
        self.finish("script")

    def watch(self) -> None:
        """Begin to follow the training, with the changes of the request."""
        ScriptRun.current = self
        for what_if in what_ifs_from(self.request.changes):
            what_if.install(self.hooks)
        self.hooks.install()
        Communication(self.clock).install(self.recorder.patches)
        self.recorder.install()
        watch_processes(self.recorder.patches, partial(run_function, self.request))
        limit = threading.Timer(self.request.limit_seconds, self.finish, ["limit"])
        limit.daemon = True
        limit.start()

    @property
    def has_measured(self) -> bool:
        """Whether there is something to report."""
        return self.recorder.window.stretch() is not None

    def finish(self, ended: Ended) -> NoReturn:
        """Report what was seen and end the process at once, before the script can save anything."""
        if os.getpid() == self.process and not self.has_reported:  # and not in a copy of it
            self.report(ended)
        leave(0)

    def report(self, ended: Ended) -> None:
        """Write what was seen, and watch no longer."""
        self.has_reported = True
        self.recorder.undo()
        peers = self.peers
        trace = Trace(ended=ended, startup_seconds=self.first_step_seconds)
        if self.has_measured:
            trace.rank, trace.world = peers.rank, peers.world
            looks_at_items = self.request.is_full and ended != "limit" and peers.rank == 0
            complete(trace, self.recorder, looks_at_items)
            trace.flops, trace.bytes = self.counted
            trace.notes += self.hooks.notes
            if self.device_time:
                trace.device_phases = self.device_time.seconds()
            self._write_timeline()
        elif peers.path.exists():  # written by a process that the script started
            return
        write_atomically(peers.path, trace.model_dump_json().encode())

    def _write_timeline(self) -> None:
        stretch = self.recorder.window.stretch()
        if self.timeline and self.request.timelines and stretch:
            first, last, _ = stretch
            found = self.timeline.timeline(first.moment, last.moment, self.device_time)
            path = self.request.timelines / f"{self.peers.rank}.json"
            write_atomically(path, found.model_dump_json().encode())

    def _execute(self) -> None:
        script = self.request.script
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        if script.suffix == SUFFIX:
            os.chdir(script.parent)  # as Jupyter does
            vars(main).update(stand_ins())
        else:
            vars(main).update(__file__=str(script))
        vars(main).update(__builtins__=__builtins__)
        seed_everything(0)
        for one in units_of(script):
            tree = ast.parse(one.text, one.name)
            vars(main).update(self.hooks.rewrite(tree))
            show_in_tracebacks(one)
            exec(compile(tree, one.name, "exec", dont_inherit=True), vars(main))

    def _after_step(self, recorder: Recorder) -> None:
        if not self.first_step_seconds:
            self.first_step_seconds = seconds_since_start()
            self._follow_device(recorder.forwards.network)
        if self.device_time:
            self.device_time.step(recorder.steps, self.clock.phase)
        if self.timeline:
            self.timeline.step(recorder.steps)
        if not recorder.window.is_over or not self.peers.have_measured():
            return
        if self.peers.rank:  # goes on training, because the others need it until rank 0 ends
            self.report("window")
            return
        if self.counter:
            self._count(recorder)
        if not self.request.is_full or self.counted[0] or self.attempts >= _COUNTS:
            if self.peers.have_reported():
                self.finish("window")
            return
        self.counter, self.evaluated = StepCounter(), recorder.forwards.evaluated
        self.attempts += 1
        self.counter.open()

    def _follow_device(self, network: nn.Module | None) -> None:
        """Mark the phases on the timeline of the network's device, if that is an accelerator."""
        parameter = next(network.parameters(), None) if network is not None else None
        if parameter is not None and has_streams(parameter.device):
            self.device_time = DeviceTime(parameter.device)
            self.clock.on_phase.append(self.device_time.on_phase)

    def _count(self, recorder: Recorder) -> None:
        """Keep the counts, unless an evaluation took place between the two steps."""
        assert self.counter
        counted, self.counter = self.counter.close(), None
        if recorder.forwards.evaluated == self.evaluated:
            self.counted = counted


def run_function(request: Request, function: Callable[[], Any]) -> Any:
    """Watch a function of the script, in a process that the script has started."""
    if ScriptRun.current:  # of the process from which this one was forked
        ScriptRun.current.recorder.undo()
    run = ScriptRun(request)
    run.watch()
    try:
        returned = function()
    except BaseException:
        if run.recorder.window.is_over:  # it fails because another rank has ended
            run.finish("script")
        raise
    if run.has_measured:
        run.finish("script")
    return returned


def main() -> NoReturn:
    """Run the request in the file named on the command line."""
    request = Request.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.dont_write_bytecode = True  # writes nothing into the script's folder
    sys.argv = [str(request.script), *request.args]
    sys.path[0] = str(request.script.parent)
    ScriptRun(request).run()


if __name__ == "__main__":
    from onsight.explainer.script import child  # under its name, so that it can be pickled

    child.main()
