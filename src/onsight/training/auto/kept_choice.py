"""Chosen models in the cache folder: the same images and settings get the same model."""

from pathlib import Path
from typing import Any

import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.cache import cached_json_path, read_cached_json, write_cached_json
from onsight.data.sources.source import Source
from onsight.hardware.devices import describe_device
from onsight.models.timm_nets import offline_models

_VERSION = 2  # increased when models are tried or chosen differently

Chosen = tuple[Choice[str], dict[str, Any]]  # the model, and the config fields that go with it


def choice_path(folder: Path, source: Source, config: Config, device: torch.device) -> Path:
    """Return where the choice of such a run is cached."""
    key = [
        source.kind,
        source.fingerprint,
        config.model_dump(mode="json", exclude={"cache_folder", "plan"}),
        describe_device(device),
        torch.__version__,
        offline_models(),
    ]
    return cached_json_path(folder, "models", _VERSION, key)


def read_choice(path: Path) -> Chosen | None:
    """Return a cached choice, or None if there is none or it cannot be read."""
    return read_cached_json(path, _parse_choice)


def write_choice(path: Path, chosen: Chosen) -> None:
    """Cache a choice for later runs, if the disk allows it."""
    choice, fields = chosen
    write_cached_json(path, {"model": choice.value, "reason": choice.reason, "fields": fields})


def _parse_choice(facts: Any) -> Chosen:
    reason = f"kept from an earlier run: {facts['reason']}"
    return Choice(facts["model"], reason), facts["fields"]
