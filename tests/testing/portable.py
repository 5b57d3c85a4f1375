"""The settings of `make test-portable`, which the conftest.py of both packages puts in force."""

import os

THREADS = int(os.environ.get("ONSIGHT_TEST_THREADS", "1"))
WEIGHTS = os.environ.get("ONSIGHT_TEST_WEIGHTS", "trained")  # or random, as networks start
assert WEIGHTS in {"trained", "random"}, WEIGHTS
