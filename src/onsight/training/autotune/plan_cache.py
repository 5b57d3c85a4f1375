"""Plans kept between runs: measured once for a machine, its versions, a network and its shapes."""

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import torch

from onsight.config import Config
from onsight.files import write_json
from onsight.hardware.cores import usable_cores
from onsight.hardware.devices import describe_device
from onsight.training.autotune.compute_options import COMPUTE_FIELDS
from onsight.training.prepare import PreparedRun

_VERSION = 1  # raise it when options are measured or chosen otherwise
_FACTS = {"chosen", "seconds", "options", "refused"}
_SHAPING = (
    *("model", "batch_size", "optimizer", "accumulate", "ema", "loss", "freeze", "pretrained"),
    *("precision", "memory_format", "compile", "threads", "residency"),
    *("crop_area", "rotate_degrees", "jitter", "cutout", "mixup", "cutmix", "flip", "translate"),
)


def plan_file(folder: Path, config: Config, prepared: PreparedRun) -> Path:
    """Where the plan of such a run is kept."""
    dataset = prepared.dataset
    facts = {
        "version": _VERSION,
        "machine": [describe_device(prepared.device), platform.machine(), usable_cores()],
        "torch": torch.__version__,
        "shape": [*dataset.input_shape, *dataset.pictures.shape, len(dataset.classes)],
        "config": {name: getattr(config, name) for name in _SHAPING},
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return folder / "plans" / f"{digest[:32]}.json"


def read_plan(path: Path) -> dict[str, Any] | None:
    """A kept plan, or None when there is none that can be read."""
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return (
            kept if kept["chosen"].keys() == set(COMPUTE_FIELDS) and kept.keys() == _FACTS else None
        )
    except (OSError, ValueError, LookupError, AttributeError):
        return None


def keep_plan(path: Path, plan: dict[str, Any]) -> None:
    """Write a plan for later runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, plan)
