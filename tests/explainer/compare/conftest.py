"""Comparisons with planted costs, so that their words can be checked."""

import pytest
import torch

from onsight.explainer.compare_devices import DeviceComparison
from onsight.explainer.rounds import DeviceCandidate, TimedCell


@pytest.fixture
def planted():
    """A function from {name: (fixed seconds, image seconds)} and sizes to a comparison.

    noise: a factor on every step of each round; problems: {(name, size): why not timed}.
    """

    def plant(costs, sizes, noise=(1.0, 1.0, 1.0), problems=None):
        candidates = [DeviceCandidate(name, torch.device("cpu"), 1, "fp32") for name in costs]
        cells = []
        for size in sizes:
            for candidate in candidates:
                fixed, image = costs[candidate.name]
                cell = TimedCell(candidate, size, lambda steps: 0.0)
                cell.problem = (problems or {}).get((candidate.name, size), "")
                if not cell.problem:
                    cell.rounds = [(fixed + image * size) * factor for factor in noise]
                cells.append(cell)
        return DeviceComparison("lenet", (32, 32, 3), candidates, list(sizes), cells)

    return plant
