"""The process that runs a user's script, whose files stay unchanged, and reports what it saw."""

import ast
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from torch import nn

from onsight.accelerator import has_streams
from onsight.explainer.script.channel import Channel, Closed
from onsight.explainer.script.ending import FAILED, leave, tell_failure
from onsight.explainer.script.hooks import Hooks
from onsight.explainer.script.leash import Leash, end_with_children
from onsight.explainer.script.observed import add_stretch, complete
from onsight.explainer.script.seeding import seed_everything
from onsight.explainer.script.thread_settings import follow_affinity
from onsight.explainer.script.trace import Ended, Request, Trace
from onsight.explainer.tracing.clock import PhaseClock
from onsight.explainer.tracing.counting import StepCounter
from onsight.explainer.tracing.devicetime import DeviceTime
from onsight.explainer.tracing.recorder import Recorder
from onsight.explainer.tracing.sites import Sites
from onsight.explainer.tracing.window import Snapshot, Window
from onsight.explainer.what_ifs.table import what_ifs_from
from onsight.files import write_atomically
from onsight.hardware.usage import seconds_since_start

_WARM_UP_STEPS = 2  # after the first, which allocates memory and chooses kernels
_WARM_UP_SECONDS = 0.25
_AGAIN_STEPS, _AGAIN_SECONDS = 2, 0.05  # of warming up, if the process was warm already
_COUNTS = 3  # attempts to count a step without an evaluation in it
_HOPELESS = 0.4  # times the script's own rate: slower changes are not measured to the end
_HOPELESS_SECONDS = 0.5


class ScriptRun:
    """One run of a script in this process, from `begin`; it trains only while it is measured."""

    def __init__(self, script: Path, args: list[str], channel: Channel | None = None) -> None:
        self.script = script
        sys.dont_write_bytecode = True  # writes nothing into the script's folder
        sys.argv = [str(script), *args]
        sys.path[0] = str(script.parent)
        self.request: Request | None = None
        self.channel = channel
        self.hooks: Hooks | None = None

    def begin(self, request: Request, channel: Channel | None = None, earlier: float = 0.0) -> None:
        """Follow the training from here on, with the changes of the request.

        channel: where to ask what to do after the first window; without one, the process ends
        then. earlier: seconds that the script had run for before this process was forked.
        """
        self.request, self.channel, self.earlier = request, channel, earlier
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
        self.hooks = Hooks(self.recorder.patches, self._is_in_data, self.recorder.is_evaluation)
        self.counter: StepCounter | None = None
        self.counted = (0, 0)
        self.attempts = 0
        self.evaluated = 0
        self.first_step_seconds = 0.0
        self.first: Snapshot | None = None
        self.is_described = False
        for what_if in what_ifs_from(request.changes):
            what_if.install(self.hooks)
        self.hooks.install()
        self.recorder.install()
        self.leash = Leash(channel, lambda: self.finish("limit"))
        self.leash.lengthen(request.limit_seconds)

    def execute(self) -> NoReturn:
        """Run the script until the process ends."""
        try:
            self._execute()
        except SystemExit:
            pass
        except BaseException as error:
            tell_failure(error, self.script)
            if self.channel:
                self.channel.send({"ended": "failed"})
            leave(FAILED)
        if self.request is None:  # it has no training that could be followed
            leave(0)
        self.finish("script")

    def finish(self, ended: Ended) -> NoReturn:
        """Report what was seen and end the process at once, before the script can save anything."""
        self._report(ended)
        leave(0)

    def _execute(self) -> None:
        tree = ast.parse(self.script.read_bytes(), str(self.script))
        names = self.hooks.rewrite(tree) if self.hooks else {}
        if self.hooks:
            follow_affinity(tree, self.recorder.patches)
        main = ModuleType("__main__")
        vars(main).update(__file__=str(self.script), __builtins__=__builtins__, **names)
        sys.modules["__main__"] = main
        seed_everything(0)
        exec(compile(tree, str(self.script), "exec", dont_inherit=True), vars(main))

    def _after_step(self, recorder: Recorder) -> None:
        assert self.request
        if not self.first_step_seconds:
            self.first_step_seconds = self.earlier + seconds_since_start()
            self.first = recorder.look()
            self._follow_device(recorder.network)
        if self.device_time:
            self.device_time.step(recorder.steps, self.clock.phase)
        if not recorder.window.is_over:
            if self.request.rate and not self.is_described and self._is_hopeless(recorder):
                self._pause("slow")
            return
        if self.counter:
            self._count(recorder)
        if not self.request.is_full or self.counted[0] or self.attempts >= _COUNTS:
            self._pause("window")
            return
        self.counter, self.evaluated = StepCounter(), recorder.evaluated
        self.attempts += 1
        self.counter.open()

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
        self.recorder.window = Window(
            asked["seconds"], self.request.steps, done + _AGAIN_STEPS, look, _AGAIN_SECONDS
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
        write_atomically(self.request.out, trace.model_dump_json().encode())
        if self.channel:
            self.channel.send({"ended": ended})

    def _describe(self, trace: Trace) -> None:
        """Add what does not change from one window to the next, in the first of them."""
        assert self.request
        assert self.hooks
        if self.is_described:
            return
        self.is_described = True
        complete(trace, self.recorder, self.request.is_full and trace.ended != "limit")
        trace.flops, trace.bytes = self.counted
        trace.notes += self.hooks.notes
        if self.device_time:
            trace.device_phases = self.device_time.seconds()

    def _is_hopeless(self, recorder: Recorder) -> bool:
        """Whether the first steps were so slow that more of them would show nothing else."""
        assert self.request
        assert self.first
        elapsed = time.perf_counter() - self.first.moment
        images = recorder.images - self.first.images
        return elapsed > _HOPELESS_SECONDS and images < _HOPELESS * self.request.rate * elapsed

    def _follow_device(self, network: nn.Module | None) -> None:
        """Mark the phases on the timeline of the network's device, if that is an accelerator."""
        parameter = next(network.parameters(), None) if network is not None else None
        if parameter is not None and has_streams(parameter.device):
            self.device_time = DeviceTime(parameter.device)
            self.clock.on_phase = self.device_time.on_phase

    def _count(self, recorder: Recorder) -> None:
        """Keep the counts, unless an evaluation took place between the two steps."""
        assert self.counter
        counted, self.counter = self.counter.close(), None
        if recorder.evaluated == self.evaluated:
            self.counted = counted

    def _is_in_data(self) -> bool:
        return self.clock.phase == "data" or not self.clock.is_here


def main() -> NoReturn:
    """Run the request in the file named on the command line; a second word is the channel."""
    request = Request.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    channel = Channel.inherited(int(sys.argv[2])) if len(sys.argv) > 2 else None
    run = ScriptRun(request.script, request.args)
    run.begin(request, channel)
    run.execute()


if __name__ == "__main__":
    main()
