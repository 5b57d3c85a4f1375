"""Time a run's training step with other flags, or in another environment."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.errors import ConfigError, NonFiniteLoss
from onsight.explainer.step_record import StepRecord, record_step
from onsight.files import write_json
from onsight.hardware.reproducible import torch_threads
from onsight.models.trial_forward import starts_slowly
from onsight.text import joined
from onsight.tune.training_data import TrainingData
from onsight.tune.trial import Trial
from onsight_explain.devices import is_out_of_memory
from onsight_explain.process.failure import read_last_output
from onsight_explain.process.supervised import Channel, Closed, SupervisedChild
from onsight_explain.search import Losses, TrialFailed
from onsight_explain.threads import thread_variables_set_by_user, usable_cores

_BATCH_SIZES = (64, 256, 1024)
_MIN_BATCHES = 8  # per epoch; larger batch sizes are not tried
_PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("bf16", "fp32", "fp16")}
_CALIBRATION_SECONDS = 0.05  # length of a trial window that shows how many steps fill a longer one
_CHILD = "onsight.explainer.child"
_START_SECONDS, _REPLY_SECONDS = 120.0, 60.0


# --- Changes ---


@dataclass(frozen=True)
class FlagChange:
    """A field of the config with another value."""

    group: str
    value: Any

    @property
    def label(self) -> str:
        """The flag as on a command line."""
        return f"--{self.group.replace('_', '-')} {self.value}"


@dataclass(frozen=True)
class UnsetVariables:
    """The removal of environment variables that OpenMP reads when torch starts."""

    names: tuple[str, ...]
    values: tuple[str, ...]  # the current values
    group: str = "environment"

    @property
    def label(self) -> str:
        """The change as an instruction to run before the command."""
        return f"{joined(self.names)} unset"

    @property
    def settings(self) -> str:
        """The variables with their current values."""
        pairs = zip(self.names, self.values, strict=True)
        return joined([f"{name}={value}" for name, value in pairs])


RunChange = FlagChange | UnsetVariables
Changes = tuple[RunChange, ...]


def changed_fields(changes: Iterable[RunChange]) -> dict[str, Any]:
    """Return the config fields that these changes set."""
    return {change.group: change.value for change in changes if isinstance(change, FlagChange)}


def find_unset(changes: Iterable[RunChange]) -> UnsetVariables | None:
    """Return the variables that these changes remove from the environment, if any."""
    return next((change for change in changes if isinstance(change, UnsetVariables)), None)


def thread_settings() -> UnsetVariables | None:
    """Return the user's variables for OpenMP threads, as a change that removes them, if any."""
    variables = thread_variables_set_by_user(os.environ)
    return UnsetVariables(tuple(variables), tuple(variables.values())) if variables else None


def flag_changes(config: Config, data: TrainingData, net: nn.Module) -> Iterator[FlagChange]:
    """Yield the flags to try. config: fully resolved; net: as this run builds it."""
    images, kind = len(data.dataset.ids(TRAIN)), data.device.type
    for size in _BATCH_SIZES:
        if size >= 2 * config.batch_size and images >= _MIN_BATCHES * size:
            yield FlagChange("batch_size", size)
    for precision in _PRECISIONS.get(kind, ()):
        if precision != config.precision:
            yield FlagChange("precision", precision)
    if kind == "cpu":
        for count in sorted({1, usable_cores()} - {config.threads}):
            yield FlagChange("threads", count)
    if any(parameter.ndim == 4 for parameter in net.parameters()):
        is_slow = config.memory_format == "auto" and starts_slowly(net, data.device)
        is_plain = config.memory_format == "contiguous" or is_slow
        yield FlagChange("memory_format", "channels_last" if is_plain else "contiguous")
    if config.accumulate > 1:
        yield FlagChange("accumulate", 1)


# --- Trials ---


class _RunTrial:
    """A trial of whose losses nothing is said: a flag's effect on them is documented."""

    def losses(self) -> Losses:
        """Return "not comparable"."""
        return "not comparable"

    def notes(self) -> list[str]:
        """Return no notes."""
        return []


class FlagTrial(_RunTrial):
    """The run's step with other flags, built when it is first measured."""

    def __init__(self, bench: "RunBench", flags: Changes) -> None:
        self.bench, self.config = bench, bench.config_with(flags)
        self._time_steps: Callable[[int], float] | None = None
        self._steps = 1

    def measure(self, seconds: float) -> float:
        """Return images per second, measured for about this long. Raises TrialFailed."""
        try:
            if self._time_steps is None:
                self._time_steps = Trial(self.config, self.bench.data).timer(self.config.batch_size)
                self._time_steps(1)  # allocates memory and chooses kernels
                while (spent := self._time_steps(self._steps)) < _CALIBRATION_SECONDS:
                    self._steps *= 2
                self._steps = max(1, round(self._steps * seconds / spent))
            return self._steps * self.config.batch_size / self._time_steps(self._steps)
        except (RuntimeError, ConfigError, NonFiniteLoss) as error:
            self.close()
            why = "out of memory" if is_out_of_memory(error) else str(error).splitlines()[0]
            raise TrialFailed(why) from None

    def close(self) -> None:
        """Free the memory of the trial."""
        self._time_steps = None


class FreshTrial(_RunTrial):
    """The run's step in a separate process, started without some environment variables."""

    def __init__(self, run: "FreshRun", changes: Changes) -> None:
        self.run = run
        self.flags = [change for change in changes if isinstance(change, FlagChange)]

    def measure(self, seconds: float) -> float:
        """Return images per second, measured for about this long. Raises TrialFailed."""
        return self.run.measure(self.flags, seconds)

    def close(self) -> None:
        """Do nothing: other trials use the process too."""


class RunBench:
    """Times a run's step with changes. Its config is fully resolved (no "auto")."""

    def __init__(
        self,
        config: Config,
        data: TrainingData,
        fresh: "FreshRun | None" = None,
        is_busy: bool = False,
    ) -> None:
        """Choose the changes to try; those of the environment only on the CPU.

        is_busy: whether other processes keep the machine busy, so that fewer threads seem better.
        """
        self.config, self.data, self.fresh = config, data, fresh
        self._changes: list[RunChange] = []
        if fresh and data.device.type == "cpu":
            self._changes.append(fresh.without)
        flags = flag_changes(config, data, data.new_network(config))
        self._changes += [flag for flag in flags if not (is_busy and flag.group == "threads")]

    def config_with(self, flags: Changes) -> Config:
        """Return the config with these flags."""
        return self.config.model_copy(update=changed_fields(flags))

    def open(self, changes: Changes) -> FlagTrial | FreshTrial:
        """Return a trial with these changes."""
        if self.fresh and find_unset(changes):
            return FreshTrial(self.fresh, changes)
        return FlagTrial(self, changes)

    def close(self) -> None:
        """End the child process, if one was started."""
        if self.fresh:
            self.fresh.close()

    def candidates(self, trial: FlagTrial | FreshTrial) -> list[RunChange]:
        """Return the changes to try, which do not depend on those already applied."""
        return self._changes

    def record(self, flags: Changes, seconds: float, has_timeline: bool = False) -> StepRecord:
        """Record where the time of a step goes with these flags."""
        config = self.config_with(flags)
        with torch_threads(config.threads):
            return record_step(Trial(config, self.data), config.batch_size, seconds, has_timeline)


class FreshRun:
    """The run in a child process, started without some variables when it is first measured."""

    def __init__(self, data: str, config: Config, without: UnsetVariables) -> None:
        """Take the config as given: other choices may be best without the variables."""
        self.data, self.config, self.without = data, config, without
        self._folder = tempfile.TemporaryDirectory(prefix="onsight-explain-")
        self._output = Path(self._folder.name) / "output.txt"
        self._channel: Channel | None = None
        self._child: SupervisedChild | None = None

    def measure(self, flags: Iterable[FlagChange], seconds: float) -> float:
        """Return images/s with these flags, measured for about this long. Raises TrialFailed."""
        try:
            channel = self._channel or self._start()
            channel.send({"flags": changed_fields(flags), "seconds": seconds})
            reply, _ = channel.receive(seconds + _REPLY_SECONDS)
        except (Closed, TimeoutError):
            lines = read_last_output(self._output).splitlines()
            raise TrialFailed(lines[-1] if lines else "its process did not answer") from None
        if "problem" in reply:
            raise TrialFailed(reply["problem"])
        rate: float = reply["rate"]
        return rate

    def close(self) -> None:
        """End the process if it was started."""
        if self._channel:
            self._channel.close()
        if self._child:
            self._child.kill()
        self._folder.cleanup()

    def _start(self) -> Channel:
        """Start the process and wait until it has opened the run. Raises Closed, TimeoutError."""
        request = Path(self._folder.name) / "request.json"
        fields = self.config.model_dump(mode="json", exclude_unset=True)
        write_json(request, {"data": self.data, "config": fields})
        self._channel, child_end = Channel.pair()
        unset = self.without.names
        self._child = SupervisedChild(
            _CHILD,
            [str(request)],
            output=self._output,
            environment={name: value for name, value in os.environ.items() if name not in unset},
            channel=child_end,
        )
        self._channel.receive(_START_SECONDS)
        return self._channel
