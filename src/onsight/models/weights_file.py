"""Weights from a file that the user names: safetensors, or a pickle of plain tensors.

No code is ever run from such a file.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from onsight.errors import ModelError
from onsight.models.expected_input import ExpectedInput
from onsight.models.preprocessing import Preprocessing
from onsight.tensorfile import DamagedFile, read_tensors
from onsight.words import listed

_IN_FOLDER = "model.safetensors"  # of a run folder, and of a Hugging Face repository
_PICKLED = {".pth", ".pt", ".bin"}
_KINDS = "a .safetensors, .pth, .pt or .bin file with a network's weights"
_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")  # averages first, as in timm
_OWN_PREFIX = "onsight."  # what a model file of Onsight holds besides weights


@dataclass(frozen=True)
class WeightsFile:
    """The tensors of a weights file by name; expected: their images, if the file says so."""

    source: str
    tensors: dict[str, Tensor]
    expected: ExpectedInput | None = None


def read_weights(path: str | Path) -> WeightsFile:
    """Read a weights file, or the model.safetensors in a folder. Raises ModelError."""
    path = Path(path)
    if path.is_dir():
        path = path / _IN_FOLDER
    if not path.is_file():
        raise ModelError(f"there is no file {path} to take weights from")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix not in _PICKLED:
        raise ModelError(f"{path} is not a weights file: give {_KINDS}")
    wrapper, tensors = _unwrap(path, _unpickle(path))
    source = f"{path} ({wrapper})" if wrapper else str(path)
    return WeightsFile(source, tensors, _config_beside(path))


def _read_safetensors(path: Path) -> WeightsFile:
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        if "facts" in metadata and "sha256" in metadata:
            return _read_own(path)
        # Mapped, since most callers want only what it expects; a network gets copies.
        return WeightsFile(str(path), load_file(path), _config_beside(path))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} is truncated, damaged or not safetensors: {error}") from error


def _read_own(path: Path) -> WeightsFile:
    """The model file of another run, whose preprocessing comes with it."""
    try:
        tensors, facts = read_tensors(path)
    except DamagedFile as error:
        raise ModelError(str(error)) from error
    if not isinstance(facts.get("image"), dict):
        raise ModelError(f"{path} is not the model of a run: give its model.safetensors")
    kept = {name: one for name, one in tensors.items() if not name.startswith(_OWN_PREFIX)}
    return WeightsFile(str(path), kept, ExpectedInput.of_run(Preprocessing.of(facts["image"])))


def _unpickle(path: Path) -> Any:
    try:
        # timm keeps the arguments of a training beside its weights; a Namespace is plain data.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged file fails in many ways
        raise ModelError(f"{path} {_unreadable(str(error))}") from error


def _unreadable(reason: str) -> str:
    """Why torch could not read a file, in one line; torch's own advice is to run its code."""
    if not reason.startswith("Weights only load failed"):
        first = reason.strip().partition("\n")[0]
        return f"is truncated, damaged or not a weights file: {first}"
    if "global" not in reason.lower():
        return f"is not a weights file: give {_KINDS}"
    return (
        "holds objects that only code can make, and Onsight runs none from a file. "
        "Where you trust it, save net.state_dict() alone, with torch.save or safetensors"
    )


def _unwrap(path: Path, content: Any) -> tuple[str, dict[str, Tensor]]:
    """The key under which a training script kept the weights, or an empty text, and the weights."""
    inside = ""
    while isinstance(content, Mapping):
        wrapper = next((key for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if wrapper is None:
            break
        content, inside = content[wrapper], wrapper
    if not isinstance(content, Mapping):
        raise ModelError(f"{path} holds a {type(content).__name__}, not weights by name")
    tensors = {str(key): one for key, one in content.items() if isinstance(one, Tensor)}
    if not tensors:
        keys = listed([str(key) for key in content], 4)
        raise ModelError(f"{path} holds no tensors by name" + (f", only {keys}" if keys else ""))
    return inside, tensors


def _config_beside(path: Path) -> ExpectedInput | None:
    """The pretrained_cfg of the config.json that the Hugging Face Hub keeps beside weights."""
    config = path.parent / "config.json"
    if not config.is_file():
        return None
    try:
        facts = json.loads(config.read_text(encoding="utf-8")).get("pretrained_cfg")
        return None if facts is None else ExpectedInput.of_timm(facts)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"the pretrained_cfg in {config} cannot be used: {error!r}") from error
