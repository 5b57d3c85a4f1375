"""Preloaded in the process that trials are forked from: torch, and what a run imports late."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "2000")

import numpy as np
import torch
from PIL import Image

import onsight
import onsight.commands.evaluate
import onsight.commands.predict
import onsight.commands.train
from onsight.report import page
from onsight.report.console import SilentReporter

torch.set_num_threads(1)


def _no_report(run):
    (run / "report.html").touch()
    return run / "report.html"


page.write_report = _no_report  # drawing its figures takes most of a small run's time


def _small_run(folder):
    rng = np.random.default_rng(0)
    for number in range(24):
        path = folder / "data" / f"{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (12, 12), np.uint8)).save(path)
    fields = {"model": "linear", "epochs": 1, "folds": 1, "threads": 1, "cache_folder": "none"}
    onsight.train(folder / "data", out=folder / "run", reporter=SilentReporter(), **fields)


with tempfile.TemporaryDirectory() as place:
    _small_run(Path(place))
