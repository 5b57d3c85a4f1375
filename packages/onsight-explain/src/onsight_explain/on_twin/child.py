"""The process that runs a user's script on the twin, whose files stay unchanged."""

import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Literal, NoReturn

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from onsight_explain.files import write_atomically
from onsight_explain.json_dataclasses import from_json, to_json
from onsight_explain.on_twin.trace import Failure, Request, TwinTrace, Waits
from onsight_explain.process.ending import FAILED, exit_words, leave, say, tell_failure
from onsight_explain.process.executing import execute, prepare
from onsight_explain.simulated.as_cuda import twin_as_cuda
from onsight_explain.simulated.machine import NAME, Machine
from onsight_explain.simulated.record import Wait
from onsight_explain.tracing.sites import Site, is_package

_WARM_UP_STEPS = 2  # in which optimizers make their state


class TwinRun:
    """One bounded run of a script on the twin, in this process."""

    def __init__(self, request: Request, machine: Machine) -> None:
        self.request, self.machine = request, machine
        self.steps = -_WARM_UP_STEPS
        self.launches_before = 0
        self.optimizer: Optimizer | None = None

    def run(self) -> NoReturn:
        """Run the script until enough steps were seen or it ends."""
        register_optimizer_step_post_hook(self._after_step)
        limit = threading.Timer(self.request.limit_seconds, self.finish, ["limit"])
        limit.daemon = True
        limit.start()
        try:
            execute(self.request.script)
        except SystemExit as ended:
            if ended.code:  # as of wrong arguments
                say(exit_words(ended.code))
                leave(FAILED)
        except BaseException as error:
            if not _is_of_devices(error):
                tell_failure(error, self.request.script)
                leave(FAILED)
            self.finish("error", self._failure(error))
        self.finish("script")

    def finish(
        self,
        ended: Literal["steps", "script", "limit", "error"],
        failure: Failure | None = None,
    ) -> NoReturn:
        """Report what was seen and end the process at once, before the script can save anything."""
        record, steps = self.machine.record, max(0, self.steps)
        launches = record.launches.total()
        trace = TwinTrace(
            ended=ended,
            steps=steps,
            launches_before=self.launches_before + (0 if steps else launches),
            launches_per_step=launches / steps if steps else 0.0,
            waits=self._waits(record.waits, steps) if steps else [],
            faults=sorted(set(self.machine.faults())),
            failure=failure,
        )
        write_atomically(self.request.out, to_json(trace).encode())
        leave(0)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        self.optimizer = self.optimizer or optimizer
        if optimizer is not self.optimizer:  # a second optimizer updates within the same step
            return
        self.steps += 1
        if self.steps == 0:
            self.launches_before = self.machine.record.launches.total()
            self.machine.record.launches.clear()
            self.machine.record.waits.clear()
        if self.steps == self.request.steps:
            self.finish("steps")

    def _waits(self, waits: list[Wait], steps: int) -> list[Waits]:
        counted = Counter(waits)
        return [
            Waits(site=self._site(wait.place), cause=wait.cause, per_step=count / steps)
            for wait, count in counted.most_common()
        ]

    def _site(self, place: str) -> Site | None:
        """A line of the user's files, of FILE:LINE."""
        file, _, line = place.rpartition(":")
        return Site(file=file, line=int(line)) if self._owns(file) else None

    def _owns(self, file: str) -> bool:
        is_near = Path(file).is_relative_to(self.request.script.parent)
        return is_near and not is_package(file)

    def _failure(self, error: BaseException) -> Failure:
        site, frame = None, error.__traceback__
        while frame:
            if self._owns(frame.tb_frame.f_code.co_filename):
                site = Site(file=frame.tb_frame.f_code.co_filename, line=frame.tb_lineno)
            frame = frame.tb_next
        return Failure(site=site, kind=type(error).__name__, message=str(error))


def main() -> NoReturn:
    """Run the request in the file named on the command line."""
    request = from_json(Request, Path(sys.argv[1]).read_bytes())
    prepare(request.script, request.args, request.out.parent)
    with twin_as_cuda() as machine:
        TwinRun(request, machine).run()


def _is_of_devices(error: BaseException) -> bool:
    """Whether an error would not have happened on the CPU: one of torch's, by its words."""
    is_torchs = isinstance(error, (RuntimeError, TypeError))  # a full disk is a "device", too
    return is_torchs and any(word in str(error) for word in ("device", NAME))


if __name__ == "__main__":
    main()
