"""LeNet that records when each of its training steps begins, for scaling_measure.py.

Use it as `--model timed_net:TimedLeNet`. Each rank appends to its own file in $STEP_TIMES. With
$KILL_AT, the second rank kills itself in that step, once.
"""

import os
import signal
import struct
import time
from pathlib import Path

from torch import Tensor

from onsight.models.classic import LeNet


class TimedLeNet(LeNet):
    """LeNet that appends the Unix time of each step as a float64."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes)
        self.folder = Path(os.environ["STEP_TIMES"])
        self.rank = os.environ.get("RANK", "0")
        place = self.folder / f"rank-{self.rank}"
        self.file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.steps = 0

    def forward(self, images: Tensor) -> Tensor:
        """Record the time if training, then run the forward pass."""
        if self.training:
            os.write(self.file, struct.pack("d", time.time()))
            self.steps += 1
            if self.rank == "1" and str(self.steps) == os.environ.get("KILL_AT"):
                self._kill_once()
        return super().forward(images)

    def _kill_once(self) -> None:
        mark = self.folder / "killed"
        if not mark.exists():
            mark.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
