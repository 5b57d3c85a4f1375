"""Weights from a file: reading them without running code, and filling a network with them.

Files are safetensors, or pickles of plain tensors. Every tensor is accounted for: loaded, skipped
or newly started.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from onsight.errors import ModelError
from onsight.models.head import find_heads, start_head_at_zero
from onsight.models.preprocessing import ExpectedInput, Preprocessing
from onsight.tensorfile import DamagedFile, read_tensors
from onsight.text import joined, plural

_IN_FOLDER = "model.safetensors"  # name in a run folder, and in a Hugging Face repository
_PICKLED = {".pth", ".pt", ".bin"}
_KINDS = "a .safetensors, .pth, .pt or .bin file with a network's weights"
_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")  # averages first, as in timm
_OWN_PREFIX = "onsight."  # prefix of tensors other than weights in a model file of Onsight

_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")  # prefixes from wrappers around a network
_NAMES_SHOWN = 4
_Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class WeightsFile:
    """The tensors of a weights file by name."""

    source: str
    tensors: dict[str, Tensor]
    expected: ExpectedInput | None = None  # input that they were trained on, if recorded


@dataclass(frozen=True)
class LoadedWeights:
    """The origin of a network's initial weights."""

    source: str
    loaded: int  # number of the network's tensors that came from the source
    new: Mapping[str, str]  # the network's other tensors by name, with the reason
    skipped: Mapping[str, str]  # tensors of the source that the network has no place for

    @property
    def sentence(self) -> str:
        """One line that accounts for every tensor of the network and of the source."""
        total = self.loaded + len(self.new)
        parts = [f"{self.loaded:,} of {plural(total, 'tensor')} from {self.source}"]
        parts += [
            f"{joined(names, _NAMES_SHOWN)} start{'s' if len(names) == 1 else ''} new ({reason})"
            for reason, names in _group_by_reason(self.new).items()
        ]
        unused = {name: reason for name, reason in self.skipped.items() if name not in self.new}
        parts += [
            f"{joined(names, _NAMES_SHOWN)} of the file not used ({reason})"
            for reason, names in _group_by_reason(unused).items()
        ]
        return "weights: " + "; ".join(parts)


def read_weights(path: str | Path) -> WeightsFile:
    """Read a weights file, or the model.safetensors in a folder. Raises ModelError."""
    path = Path(path)
    if path.is_dir():
        path = path / _IN_FOLDER
    if not path.is_file():
        raise ModelError(f"there is no weights file {path}")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix not in _PICKLED:
        raise ModelError(f"{path} is not a weights file: pass {_KINDS}")
    wrapper, tensors = _unwrap(path, _unpickle(path))
    source = f"{path} ({wrapper})" if wrapper else str(path)
    return WeightsFile(source, tensors, _config_beside(path))


def load_into(net: nn.Module, tensors: Mapping[str, Tensor], source: str) -> LoadedWeights:
    """Fill a network with tensors by name; a head for other classes starts at zero.

    Prefixes of wrappers are dropped, and a first convolution for colour is summed for grey
    images. Raises ModelError unless everything except the head fits.
    """
    given = _for_timm(net, _named_as(net, tensors, source))
    own = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    given = {name: _for_channels(tensor, own.get(name)) for name, tensor in given.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
    new = _new_tensors(net, own, shapes, source)
    loaded = {name: tensor for name, tensor in given.items() if name in own and name not in new}
    net.load_state_dict(loaded, strict=False)
    if any(name in new for name in head_tensors(net)):
        start_head_at_zero(net)
    skipped = {name: new.get(name, "no such tensor") for name in given if name not in loaded}
    return LoadedWeights(source, len(loaded), new, skipped)


def head_tensors(net: nn.Module) -> list[str]:
    """Return the names of the tensors in a network's heads, as in its state_dict."""
    heads = {id(head) for head in find_heads(net)}
    starts = tuple(f"{name}." for name, module in net.named_modules() if id(module) in heads)
    return [name for name in net.state_dict() if name.startswith(starts)]


def _read_safetensors(path: Path) -> WeightsFile:
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        if "facts" in metadata and "sha256" in metadata:
            return _read_own(path)
        # Mapped, since most callers only need `expected`; a network gets copies.
        return WeightsFile(str(path), load_file(path), _config_beside(path))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} is truncated, damaged or not safetensors: {error}") from error


def _read_own(path: Path) -> WeightsFile:
    """Read the model file of another run, which contains its preprocessing."""
    try:
        tensors, facts = read_tensors(path)
    except DamagedFile as error:
        raise ModelError(str(error)) from error
    if not isinstance(facts.get("image"), dict):
        raise ModelError(f"{path} is not the model of a run: pass its model.safetensors")
    weights = {name: tensor for name, tensor in tensors.items() if not name.startswith(_OWN_PREFIX)}
    expected = ExpectedInput.of_run(Preprocessing.of(facts["image"]))
    return WeightsFile(str(path), weights, expected)


def _unpickle(path: Path) -> Any:
    try:
        # timm saves the arguments of a training run with its weights; a Namespace is plain data.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged file fails in many ways
        raise ModelError(f"{path} {_unreadable(str(error))}") from error


def _unreadable(reason: str) -> str:
    """Return one line on why torch could not read a file; torch's own advice is to run its code."""
    if not reason.startswith("Weights only load failed"):
        first = reason.strip().partition("\n")[0]
        return f"is truncated, damaged or not a weights file: {first}"
    if "global" not in reason.lower():
        return f"is not a weights file: pass {_KINDS}"
    return (
        "holds objects that only code can make, and Onsight runs no code from a file. "
        "If you trust it, save net.state_dict() alone, with torch.save or safetensors"
    )


def _unwrap(path: Path, content: Any) -> tuple[str, dict[str, Tensor]]:
    """Return the key that a training script saved the weights under (or ""), and the weights."""
    key_used = ""
    while isinstance(content, Mapping):
        wrapper = next((key for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if wrapper is None:
            break
        content, key_used = content[wrapper], wrapper
    if not isinstance(content, Mapping):
        raise ModelError(f"{path} holds a {type(content).__name__}, not weights by name")
    tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        keys = joined([str(key) for key in content], 4)
        raise ModelError(f"{path} holds no tensors by name" + (f", only {keys}" if keys else ""))
    return key_used, tensors


def _config_beside(path: Path) -> ExpectedInput | None:
    """Read the pretrained_cfg of the config.json that the Hugging Face Hub keeps with weights."""
    config = path.parent / "config.json"
    if not config.is_file():
        return None
    try:
        facts = json.loads(config.read_text(encoding="utf-8")).get("pretrained_cfg")
        return None if facts is None else ExpectedInput.of_timm(facts)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"the pretrained_cfg in {config} cannot be used: {error!r}") from error


def _named_as(net: nn.Module, tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    own = net.state_dict()
    named: dict[str, Tensor] = {}
    for stored, tensor in tensors.items():
        name = _own_name(stored, own)
        if name in named:
            raise ModelError(f"{source} holds two tensors for '{name}': pass one network's weights")
        named[name] = tensor
    return named


def _own_name(stored: str, own: Mapping[str, Tensor]) -> str:
    """Return a tensor's name without prefixes of wrappers that the network does not have."""
    name = stored
    while name not in own:
        prefix = next((text for text in _PREFIXES if name.startswith(text)), None)
        if prefix is None:
            break
        name = name.removeprefix(prefix)
    return name


def _for_timm(net: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights with their authors' names, or for another image size, as timm does."""
    own, heads = net.state_dict(), set(head_tensors(net))
    if all(name in tensors and tensors[name].shape == own[name].shape for name in {*own} - heads):
        return tensors
    convert = getattr(sys.modules[type(net).__module__], "checkpoint_filter_fn", None)
    if convert is None or not type(net).__module__.startswith("timm."):
        return tensors
    try:
        converted = convert(tensors, net)
        return {name: tensor for name, tensor in converted.items() if tensor is not None}
    except Exception:  # it expects a specific architecture; misfits are reported by name
        return tensors


def _for_channels(tensor: Tensor, own_shape: tuple[int, ...] | None) -> Tensor:
    shape = tuple(tensor.shape)
    if own_shape is None or len(shape) != 4 or shape[1] != 3 or own_shape[1:2] != (1,):
        return tensor
    # A grey image equals one with three equal channels, so the sum makes the same maps.
    return tensor.sum(dim=1, keepdim=True) if own_shape == (shape[0], 1, *shape[2:]) else tensor


def _new_tensors(net: nn.Module, own: _Shapes, given: _Shapes, source: str) -> dict[str, str]:
    """Return the network's tensors that start new, with the reason; only heads and counters may."""
    misfits = [name for name, shape in own.items() if given.get(name) != shape]
    heads = head_tensors(net)
    may_be_new = {*heads, *(name for name in own if name.endswith("num_batches_tracked"))}
    wrong = [name for name in misfits if name not in may_be_new]
    if wrong or len(misfits) == len(own):
        raise ModelError(_misfit(source, net, len(own) - len(misfits), own, given, wrong))
    reasons = {name: _reason(own[name], given.get(name)) for name in misfits}
    # A head is started as a whole: half of it means nothing.
    started = next((reasons[name] for name in heads if name in reasons), None)
    return (dict.fromkeys(heads, started) if started else {}) | reasons


def _reason(own: tuple[int, ...], given: tuple[int, ...] | None) -> str:
    if given is None:
        return "not in the file"
    if own and given and own[1:] == given[1:]:
        return f"{plural(own[0], 'class', 'classes')} instead of {given[0]:,}"
    return f"{own} instead of {given}"


def _misfit(
    source: str, net: nn.Module, fitting: int, own: _Shapes, given: _Shapes, wrong: list[str]
) -> str:
    if not fitting:
        return (
            f"{source} fits no layer of {type(net).__name__}: it has {joined(list(given), 2)}, "
            f"the network {joined(list(own), 2)}"
        )
    name = wrong[0]
    fault = f"is {given[name]} instead of {own[name]}" if name in given else "is missing"
    if given.get(name, ())[1:2] == (1,) and own[name][1:2] == (3,):
        fault += " (these weights are for grey images: --channels 1)"
    return (
        f"{source} is of another architecture than {type(net).__name__}: "
        f"{fitting:,} of {plural(len(own), 'tensor')} fit, but {name} {fault}"
    )


def _group_by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        grouped.setdefault(reason, []).append(name)
    return grouped
