"""Placed images for tests of the step, the plan and their timing."""

import torch

from onsight.config import make_config
from onsight.report.console import SilentReporter
from onsight.training.open_data import find_data, open_data
from onsight.tune.training_data import place

CPU = torch.device("cpu")


def make_prepared(data, **fields):
    """The config with these fields, and the data a run would train on, mapped from its pack."""
    config = make_config({"model": "compact", **fields})
    source = find_data(str(data), config, SilentReporter())
    opened = open_data(source, config, CPU, 1, SilentReporter())
    return opened.config, place(opened.dataset, opened.config, CPU, "map")
