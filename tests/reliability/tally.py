"""How many trials to run: a few of each kind, or all with RELIABILITY=full, as in `make soak`."""

import os
from contextlib import contextmanager

FULL = os.environ.get("RELIABILITY") == "full"


def count(full, few):
    """Return the number of trials, or whatever else differs with RELIABILITY=full."""
    return full if FULL else few


class Tally:
    """Counts the trials of a kind that passed, and prints a row of a table."""

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
