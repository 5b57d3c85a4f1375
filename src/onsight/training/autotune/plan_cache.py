"""Measured plans in the cache folder: what they depend on, and their JSON."""

import os
import platform
from pathlib import Path
from typing import Any

import torch

from onsight.config import Config, step_time_fields
from onsight.data.cache import cached_json_path, read_cached_json, write_cached_json
from onsight.errors import DiskError
from onsight.hardware.devices import describe_device
from onsight.training.autotune.compute_options import ComputeOptions, may_compile
from onsight.training.autotune.probe import Measured
from onsight.training.images.training_data import TrainingData
from onsight_explain.threads import thread_variables_set_by_user, usable_cores

_VERSION = 3  # increased when options are measured or chosen differently


def plan_path(folder: Path, config: Config, data: TrainingData, expected_seconds: float) -> Path:
    """Return where the plan of such a run is cached. expected_seconds: of training."""
    dataset = data.dataset
    key = {
        "machine": [describe_device(data.device), platform.machine(), usable_cores()],
        "torch": torch.__version__,
        "threads": thread_variables_set_by_user(os.environ),
        "shape": [*dataset.input_shape, *dataset.images.shape, len(dataset.classes)],
        "config": {name: getattr(config, name) for name in step_time_fields()},
        "may_compile": may_compile(config, data.device, expected_seconds),
    }
    return cached_json_path(folder, "plans", _VERSION, key)


def read_plan(path: Path) -> Measured | None:
    """Return a cached plan, or None if there is none or it cannot be read."""
    return read_cached_json(path, _parse_plan)


def write_plan(path: Path, plan: Measured) -> OSError | DiskError | None:
    """Cache a plan for later runs; return the error if the disk does not allow it."""
    facts = {
        "chosen": plan.chosen.facts(),
        "seconds": [(options.facts(), seconds) for options, seconds in plan.seconds.items()],
        "refused": [(options.facts(), reason) for options, reason in plan.refused.items()],
    }
    return write_cached_json(path, facts)


def _parse_plan(facts: Any) -> Measured | None:
    seconds = {ComputeOptions(**options): float(time) for options, time in facts["seconds"]}
    refused = {ComputeOptions(**options): str(reason) for options, reason in facts["refused"]}
    plan = Measured(ComputeOptions(**facts["chosen"]), seconds, refused)
    return plan if plan.chosen in plan.seconds else None
