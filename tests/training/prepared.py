"""Placed pictures for tests of the step, the plan and their timing."""

import torch

from onsight.config import make_config
from onsight.report.console import SilentReporter
from onsight.training.pictures.open_data import open_data
from onsight.training.pictures.training_data import place

CPU = torch.device("cpu")


def make_prepared(data, **fields):
    """The config with these fields, and the data a run would train on, mapped from its pack."""
    opened = open_data(str(data), make_config(fields), CPU, 1, SilentReporter())
    return opened.config, place(opened.dataset, opened.config, CPU, "map")
