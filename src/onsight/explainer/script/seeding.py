"""The random generators that scripts use: seeded in every run, and left undisturbed by us."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, torch and NumPy, if that is installed."""
    random.seed(seed)
    torch.manual_seed(seed)
    with suppress(ImportError):  # the script may import it later; torch works without it
        import numpy as np

        np.random.seed(seed)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Random numbers drawn inside do not change those drawn afterwards."""
    numpy = sys.modules.get("numpy")
    states = random.getstate(), torch.get_rng_state(), numpy and numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if numpy:
            numpy.random.set_state(states[2])
