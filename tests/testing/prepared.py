"""Placed images for tests of the step, the plan and their timing."""

import torch

from onsight.choice import Choice
from onsight.config import make_config
from onsight.report.console import SilentReporter
from onsight.training.job import Job
from onsight.training.layout import choose_layout, find_data
from onsight.training.open_data import open_data
from onsight.tune.training_data import place_data

CPU = torch.device("cpu")


def make_job(**fields):
    """A job on the CPU, with one thread and as much time as it takes."""
    return Job(SilentReporter(), Choice(CPU, "the only device"), Choice(1, "asked for"), **fields)


def make_prepared(data, **fields):
    """The config with these fields, and the data a run would train on, mapped from its pack."""
    config, job = make_config({"model": "compact", "epochs": 10, **fields}), make_job()
    layout = choose_layout(find_data(str(data), config, job), config, job)
    opened = open_data(layout, None, job)
    return opened.config, place_data(opened.dataset, opened.config, CPU, "map")
