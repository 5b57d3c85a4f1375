"""The work of one training step: its arithmetic and the bytes that its operations move."""

from onsight_explain.tracing.counting import StepCounter
from onsight_explain.tracing.recorder import Recorder

_ATTEMPTS = 3  # to count a step without an evaluation in it


class StepWork:
    """Counts the steps after a window, until one of them had no evaluation in it.

    counted: arithmetic operations and bytes; zeros before that.
    """

    def __init__(self) -> None:
        self.counted = (0, 0)
        self._counter: StepCounter | None = None
        self._attempts = self._evaluated = 0

    def is_known(self, recorder: Recorder) -> bool:
        """Whether it is, or cannot be, after a step; otherwise the next step is counted."""
        if self._counter:
            counted, self._counter = self._counter.close(), None
            if recorder.forwards.evaluated == self._evaluated:
                self.counted = counted
        if self.counted[0] or self._attempts >= _ATTEMPTS:
            return True
        self._counter, self._evaluated = StepCounter(), recorder.forwards.evaluated
        self._attempts += 1
        self._counter.open()
        return False
