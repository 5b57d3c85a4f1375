"""The process that runs a user's script on the simulated GPU and keeps its files unchanged."""

import sys
import threading
from collections import Counter
from pathlib import Path
from traceback import walk_tb
from typing import Any, Literal, NoReturn

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from onsight_explain.files import write_atomically
from onsight_explain.json_dataclasses import from_json, to_json
from onsight_explain.process.execution import (
    execute,
    leave,
    prepare,
    print_error,
    print_traceback,
)
from onsight_explain.process.failure import FAILED, describe_sys_exit
from onsight_explain.script.trace import (
    DeviceFailure,
    SimulationRequest,
    SimulationTrace,
    Waits,
)
from onsight_explain.simulated.install import simulated_cuda
from onsight_explain.simulated.machine import DEVICE_TYPE, Machine, Wait
from onsight_explain.tracing.sites import Site, Sites

_WARM_UP_STEPS = 2  # in which optimizers create their state


class SimulatedRun:
    """One run of a script on the simulated GPU, for a limited number of steps, in this process."""

    def __init__(self, request: SimulationRequest, machine: Machine) -> None:
        self.request, self.machine = request, machine
        self.sites = Sites(request.script.parent)
        self.steps = -_WARM_UP_STEPS
        self.launches_before = 0
        self.optimizer: Optimizer | None = None

    def run(self) -> NoReturn:
        """Run the script until enough steps were observed or it ends."""
        register_optimizer_step_post_hook(self._after_step)
        limit = threading.Timer(self.request.limit_seconds, self.finish, ["limit"])
        limit.daemon = True
        limit.start()
        try:
            execute(self.request.script)
        except SystemExit as exit_request:
            if exit_request.code:  # such as for wrong arguments
                print_error(describe_sys_exit(exit_request.code))
                leave(FAILED)
        except BaseException as error:
            if not _is_device_error(error):
                print_traceback(error, self.request.script)
                leave(FAILED)
            self.finish("error", self._device_failure(error))
        self.finish("script")

    def finish(
        self,
        ended: Literal["steps", "script", "limit", "error"],
        failure: DeviceFailure | None = None,
    ) -> NoReturn:
        """Report and end the process at once, before the script can save anything."""
        record, steps = self.machine.record, max(0, self.steps)
        launches = record.launches.total()
        trace = SimulationTrace(
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
        return [
            Waits(site=self._site(wait.place), cause=wait.cause, per_step=count / steps)
            for wait, count in Counter(waits).most_common()
        ]

    def _site(self, place: str) -> Site | None:
        """Return FILE:LINE as a site, if it is a line of the user's files."""
        file, _, line = place.rpartition(":")
        return Site(file=file, line=int(line)) if self.sites.owns(file) else None

    def _device_failure(self, error: BaseException) -> DeviceFailure:
        site: Site | None = None
        for frame, line in walk_tb(error.__traceback__):
            if self.sites.owns(frame.f_code.co_filename):  # the innermost counts
                site = Site(file=frame.f_code.co_filename, line=line)
        return DeviceFailure(site=site, kind=type(error).__name__, message=str(error))


def main() -> NoReturn:
    """Run the request in the file named on the command line."""
    request = from_json(SimulationRequest, Path(sys.argv[1]).read_bytes())
    prepare(request.script, request.args, request.out.parent)
    with simulated_cuda() as machine:
        SimulatedRun(request, machine).run()


def _is_device_error(error: BaseException) -> bool:
    """Return whether an error's message is one of torch's that cannot occur on the CPU."""
    is_torch_error = isinstance(error, (RuntimeError, TypeError))  # "device" may mean a full disk
    return is_torch_error and any(word in str(error) for word in ("device", DEVICE_TYPE))


if __name__ == "__main__":
    main()
