"""What a rule can ask about a script: its facts, its loops, and the modes of its networks."""

from functools import cached_property

from onsight_lint.facts import Facts
from onsight_lint.gradients import Gradients
from onsight_lint.loops import BatchLoop, batch_loops
from onsight_lint.modes import Modes
from onsight_lint.step_loops import step_loops


class Context(Facts):
    """The facts about a script, and the answers that are worked out when a rule asks for them."""

    @cached_property
    def batch_loops(self) -> list[BatchLoop]:
        """The loops over DataLoaders."""
        return batch_loops(self)

    @cached_property
    def step_loops(self) -> list[BatchLoop]:
        """The same, and the loops that take batches without a DataLoader."""
        return step_loops(self, self.batch_loops)

    @cached_property
    def modes(self) -> Modes:
        """Where networks are in training or evaluation mode."""
        return Modes(self)

    @cached_property
    def gradients(self) -> Gradients:
        """Where gradients are switched off."""
        return Gradients(self, self.modes)
