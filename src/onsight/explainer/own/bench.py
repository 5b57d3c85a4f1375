"""The bench for Onsight's own runs: each trial is the run's step with something changed."""

from collections.abc import Callable

import torch

from onsight.config import Config
from onsight.explainer.own.changes import (
    FlagChange,
    RunChange,
    fields_of,
    flag_changes,
    unset_among,
)
from onsight.explainer.own.fresh import FreshRun
from onsight.explainer.own.record import StepRecord, record_step
from onsight.training.autotune.trial import Trial
from onsight.training.images.training_data import TrainingData
from onsight_explain.devices import is_out_of_memory
from onsight_explain.search import Losses, TrialFailed

_FIRST_SECONDS = 0.05  # that a window lasts at least, to tell how many steps fill it

Changes = tuple[RunChange, ...]


class FlagTrial:
    """The run's step with other flags, built when it is first measured."""

    def __init__(self, bench: "RunBench", flags: Changes) -> None:
        self.bench, self.config = bench, bench.config_with(flags)
        self._seconds: Callable[[int], float] | None = None
        self._steps = 1

    def measure(self, seconds: float) -> float:
        """Images per second over about so long. Raises Untried."""
        try:
            if self._seconds is None:
                self._seconds = Trial(self.config, self.bench.data).at(self.config.batch_size)
                self._seconds(1)  # allocates memory and chooses kernels
                while (spent := self._seconds(self._steps)) < _FIRST_SECONDS:
                    self._steps *= 2
                self._steps = max(1, round(self._steps * seconds / spent))
            return self._steps * self.config.batch_size / self._seconds(self._steps)
        except RuntimeError as error:
            self.close()
            why = "out of memory" if is_out_of_memory(error) else str(error).splitlines()[0]
            raise TrialFailed(why) from None

    def losses(self) -> Losses:
        """Not looked at: the flags say themselves what they change."""
        return "not comparable"

    def notes(self) -> list[str]:
        """None."""
        return []

    def close(self) -> None:
        """Give its memory back."""
        self._seconds = None


class FreshTrial:
    """The same in a process of its own, started without some variables."""

    def __init__(self, run: FreshRun, changes: Changes) -> None:
        self.run = run
        self.flags = [one for one in changes if isinstance(one, FlagChange)]

    def measure(self, seconds: float) -> float:
        """Images per second over about so long. Raises Untried."""
        return self.run.measure(self.flags, seconds)

    def losses(self) -> Losses:
        """Not looked at, as with flags."""
        return "not comparable"

    def notes(self) -> list[str]:
        """None."""
        return []

    def close(self) -> None:
        """Nothing: the process is for other trials too."""


class RunBench:
    """Times a run's step with changes. config: with nothing left to choose.

    fresh: the same run without some variables of the environment, which matter on the CPU.
    """

    def __init__(self, config: Config, data: TrainingData, fresh: FreshRun | None = None) -> None:
        self.config, self.data, self.fresh = config, data, fresh
        self._changes: list[RunChange] = []
        if fresh and data.device.type == "cpu":
            self._changes.append(fresh.without)
        self._changes += flag_changes(config, data, data.new_network(config))

    def config_with(self, flags: Changes) -> Config:
        """The config with these flags."""
        return self.config.model_copy(update=fields_of(flags))

    def open(self, changes: Changes) -> FlagTrial | FreshTrial:
        """A trial with these changes."""
        if self.fresh and unset_among(changes):
            return FreshTrial(self.fresh, changes)
        return FlagTrial(self, changes)

    def close(self) -> None:
        """End the process that was started, if there is one."""
        if self.fresh:
            self.fresh.close()

    def candidates(self, trial: FlagTrial | FreshTrial) -> list[RunChange]:
        """What is worth trying, whatever was changed already."""
        return self._changes

    def record(self, flags: Changes, seconds: float, has_timeline: bool = False) -> StepRecord:
        """Where the time of a step goes with these flags."""
        config, former = self.config_with(flags), torch.get_num_threads()
        torch.set_num_threads(config.threads)
        try:
            return record_step(Trial(config, self.data), config.batch_size, seconds, has_timeline)
        finally:
            torch.set_num_threads(former)
