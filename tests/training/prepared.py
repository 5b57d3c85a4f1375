"""PreparedRun for tests of the step, the plan and their timing, from pictures in a folder."""

import torch

from onsight.choice import Choice
from onsight.config import make_config
from onsight.report.console import SilentReporter
from onsight.training.open_data import open_data
from onsight.training.prepare import place

CPU = torch.device("cpu")


def make_prepared(data, **fields):
    """The config of these fields and what a run of it would train on."""
    plan = {"device": Choice(CPU, ""), "threads": Choice(1, ""), "pictures": Choice("map", "")}
    _, config, dataset = open_data(str(data), make_config(fields), plan, SilentReporter())
    return config, place(config, plan, dataset)
