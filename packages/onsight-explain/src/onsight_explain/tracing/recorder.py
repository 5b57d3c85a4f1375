"""Records a training loop as it runs in this process, by watching torch's own calls."""

from collections.abc import Callable
from typing import Any

from torch import nn

from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.forwards import Forwards
from onsight_explain.tracing.loaders import Loaders
from onsight_explain.tracing.patches import Patches
from onsight_explain.tracing.sites import Sites
from onsight_explain.tracing.slices import Slices
from onsight_explain.tracing.timing import timed
from onsight_explain.tracing.transfers import Transfers
from onsight_explain.tracing.updates import Updates
from onsight_explain.tracing.window import Snapshot, Window


class Recorder:
    """Follows a training loop from `install` to `undo`; each of its parts watches some calls.

    on_step: called with this recorder after every update.
    """

    def __init__(
        self,
        clock: PhaseClock,
        sites: Sites,
        seconds: float,
        steps: int,
        warm_up_steps: int,
        on_step: Callable[["Recorder"], None],
    ) -> None:
        self.clock, self.sites, self.on_step = clock, sites, on_step
        self.window = Window(seconds, steps, warm_up_steps, self.look)
        self.patches = Patches()
        self.steps = 0
        self.loaders = Loaders(clock, sites, lambda: self.window.epoch())
        self.forwards = Forwards(clock, sites, self.loaders, self._before_forward)
        self.updates = Updates(clock, sites, self._before_backward, self._after_update)
        self.transfers = Transfers(clock, sites)
        self.slices = Slices(clock)

    def install(self) -> None:
        """Start following torch's calls."""
        for part in (self.forwards, self.loaders, self.updates, self.transfers):
            part.install(self.patches)

    def undo(self) -> None:
        """Restore torch as it was."""
        self.patches.undo()

    def time(self, owner: Any, name: str, phase: str) -> None:
        """Count a function's time for a phase."""
        self.patches.put(owner, name, timed(getattr(owner, name), self.clock, phase))

    def look(self) -> Snapshot:
        """How far the training is."""
        return Snapshot(
            self.clock.now,
            self.steps,
            self.forwards.images,
            self.forwards.evaluated,
            self.clock.read(),
        )

    def _before_forward(self, network: nn.Module) -> None:
        self.updates.look_for_one(network)

    def _before_backward(self) -> None:
        self.forwards.settle(is_backward=True)

    def _after_update(self) -> None:
        self.steps += 1
        self.loaders.note_update()
        self.forwards.note_update()
        self.window.step(self.steps)
        if self.steps == 1 and not self.loaders.is_used:
            self.slices.install(self.patches)
        self.on_step(self)
