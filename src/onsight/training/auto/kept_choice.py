"""The chosen model, kept between runs: the same images and settings get the same model."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.sources.source import Source
from onsight.errors import DiskError
from onsight.files import write_json
from onsight.hardware.devices import describe_device
from onsight.models.timm_nets import offline_models

_VERSION = 2  # raise it when models are tried or chosen differently

Chosen = tuple[Choice[str], dict[str, Any]]


def choice_file(folder: Path, source: Source, config: Config, device: torch.device) -> Path:
    """Where the choice for such a run is kept."""
    facts = [
        _VERSION,
        source.kind,
        source.fingerprint,
        config.model_dump(mode="json", exclude={"cache_folder", "plan"}),
        describe_device(device),
        torch.__version__,
        offline_models(),
    ]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return folder / "models" / f"{digest[:32]}.json"


def read_choice(path: Path) -> Chosen | None:
    """A kept choice and its config fields, or None if there is none or it cannot be read."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return Choice(kept["model"], f"kept from an earlier run: {kept['reason']}"), kept["fields"]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def keep_choice(path: Path, chosen: Chosen) -> None:
    """Write a choice for later runs, if the disk allows."""
    choice, fields = chosen
    with suppress(OSError, DiskError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"model": choice.value, "reason": choice.reason, "fields": fields})
