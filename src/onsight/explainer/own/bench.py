"""The bench for Onsight's own runs: each trial is the run's step with some flags changed."""

from collections.abc import Callable

import torch

from onsight.config import Config
from onsight.explainer.own.changes import FlagChange, fields_of, flag_changes
from onsight.explainer.own.record import StepRecord, record_step
from onsight.explainer.search.tried import Losses, Untried
from onsight.hardware.memory import is_out_of_memory
from onsight.training.autotune.trial import Trial
from onsight.training.pictures.training_data import TrainingData

_FIRST_SECONDS = 0.05  # that a window lasts at least, to tell how many steps fill it

Flags = tuple[FlagChange, ...]


class FlagTrial:
    """The run's step with other flags, built when it is first measured."""

    def __init__(self, bench: "RunBench", flags: Flags) -> None:
        self.bench, self.config = bench, bench.config_with(flags)
        self._seconds: Callable[[int], float] | None = None
        self._steps = 1

    def measure(self, seconds: float) -> float:
        """Pictures per second over about so long. Raises Untried."""
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
            raise Untried(why) from None

    def losses(self) -> Losses:
        """Not looked at: the flags say themselves what they change."""
        return "not comparable"

    def notes(self) -> list[str]:
        """None."""
        return []

    def close(self) -> None:
        """Give its memory back."""
        self._seconds = None


class RunBench:
    """Times a run's step with other flags. config: with nothing left to choose."""

    def __init__(self, config: Config, data: TrainingData) -> None:
        self.config, self.data = config, data
        self._flags = flag_changes(config, data, data.new_network(config))

    def config_with(self, flags: Flags) -> Config:
        """The config with these flags."""
        return self.config.model_copy(update=fields_of(flags))

    def open(self, changes: Flags) -> FlagTrial:
        """A trial with these flags."""
        return FlagTrial(self, changes)

    def worth(self, trial: FlagTrial) -> list[FlagChange]:
        """The flags worth trying, whatever was changed already."""
        return self._flags

    def record(self, flags: Flags, seconds: float) -> StepRecord:
        """Where the time of a step goes with these flags."""
        config, former = self.config_with(flags), torch.get_num_threads()
        torch.set_num_threads(config.threads)
        try:
            return record_step(Trial(config, self.data), config.batch_size, seconds)
        finally:
            torch.set_num_threads(former)
