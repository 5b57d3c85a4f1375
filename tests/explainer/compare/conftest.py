"""Comparisons with planted costs, so that their words can be checked."""

import pytest
import torch

from onsight.explainer.compare.candidates import Candidate
from onsight.explainer.compare.measure import Comparison
from onsight.explainer.compare.rounds import Cell


@pytest.fixture
def planted():
    """A function from {name: (fixed seconds, image seconds)} and sizes to a comparison.

    noise: a factor on every step of each round; problems: {(name, size): why not timed}.
    """

    def plant(costs, sizes, noise=(1.0, 1.0, 1.0), problems=None):
        candidates = [Candidate(name, torch.device("cpu"), 1, "fp32") for name in costs]
        cells = []
        for size in sizes:
            for candidate in candidates:
                fixed, image = costs[candidate.name]
                cell = Cell(candidate, size, lambda steps: 0.0)
                cell.problem = (problems or {}).get((candidate.name, size), "")
                if not cell.problem:
                    cell.rounds = [(fixed + image * size) * factor for factor in noise]
                cells.append(cell)
        return Comparison("lenet", (32, 32, 3), candidates, list(sizes), cells)

    return plant
