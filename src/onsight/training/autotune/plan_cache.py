"""Plans kept between runs: measured once per machine, settings of threads, network and shapes."""

import hashlib
import json
import os
import platform
from pathlib import Path

import torch

from onsight.config import Config, step_time_fields
from onsight.files import write_json
from onsight.hardware.devices import describe_device
from onsight.training.autotune.compute_options import ComputeOptions, may_compile
from onsight.training.autotune.probe import Measured
from onsight.training.images.training_data import TrainingData
from onsight_explain.threads import thread_variables_set_by_user, usable_cores

_VERSION = 3  # raise it when options are measured or chosen differently


def plan_file(folder: Path, config: Config, data: TrainingData, expected_seconds: float) -> Path:
    """Where the plan for such a run is kept; expected_seconds: of training."""
    dataset = data.dataset
    facts = {
        "version": _VERSION,
        "machine": [describe_device(data.device), platform.machine(), usable_cores()],
        "torch": torch.__version__,
        "threads": thread_variables_set_by_user(os.environ),
        "shape": [*dataset.input_shape, *dataset.images.shape, len(dataset.classes)],
        "config": {name: getattr(config, name) for name in step_time_fields()},
        "may_compile": may_compile(config, data.device, expected_seconds),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return folder / "plans" / f"{digest[:32]}.json"


def read_plan(path: Path) -> Measured | None:
    """A kept plan, or None if there is none or it cannot be read."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        seconds = [(ComputeOptions(**one), float(s)) for one, s in kept["seconds"]]
        refused = [(ComputeOptions(**one), str(why)) for one, why in kept["refused"]]
        found = Measured(ComputeOptions(**kept["chosen"]), dict(seconds), dict(refused))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return found if found.chosen in found.seconds else None


def keep_plan(path: Path, plan: Measured) -> None:
    """Write a plan for later runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "chosen": plan.chosen.facts(),
        "seconds": [(options.facts(), seconds) for options, seconds in plan.seconds.items()],
        "refused": [(options.facts(), reason) for options, reason in plan.refused.items()],
    }
    write_json(path, facts)
