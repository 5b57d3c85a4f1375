"""Counts: a few trials of each kind, or all of them with RELIABILITY=full, as in `make soak`."""

import os
from contextlib import contextmanager

FULL = os.environ.get("RELIABILITY") == "full"


def count(full, few):
    """How many trials there are."""
    return full if FULL else few


class Tally:
    """Trials of a kind, each passed or not; the row of a table at the end."""

    def __init__(self, what):
        self.what, self.tried, self.failed = what, 0, []

    @contextmanager
    def trial(self, name):
        self.tried += 1
        try:
            yield
        except AssertionError as error:
            self.failed.append(f"{name}: {error}")

    def end(self):
        """Print the row; fail if any trial did."""
        print(f"\n| {self.what} | {self.tried - len(self.failed)} of {self.tried} |")
        assert not self.failed, "\n".join(self.failed[:5])
