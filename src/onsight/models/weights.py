"""Reads weights files without running code, and loads them into networks.

Files are safetensors, or pickles of plain tensors. Every tensor is reported as loaded, skipped or
newly initialized.
"""

import argparse
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from onsight.errors import DataError, ModelError
from onsight.models.head import find_heads, start_head_at_zero
from onsight.models.members import check_member, member_prefix
from onsight.models.preprocessing import ExpectedInput, Preprocessing
from onsight.tensorfile import DamagedFile, read_tensors, take_under
from onsight.text import data_size, joined, plural
from onsight.untrusted import read_json

_IN_FOLDER = "model.safetensors"  # name in a run folder, and in a Hugging Face repository
_PICKLED = {".pth", ".pt", ".bin"}
_KINDS = "a .safetensors, .pth, .pt or .bin file with a network's weights"
# Keys that training scripts save weights under; moving averages come first, as in timm.
_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")
_MAX_WRAPPERS = 4  # such keys within each other
_OWN_PREFIX = "onsight."  # of tensors other than weights in a model file of Onsight

_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")  # of wrappers around a network
_NAMES_SHOWN = 4
_Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class WeightsFile:
    """The content of a weights file."""

    source: str  # path, for messages
    tensors: dict[str, Tensor]
    expected: ExpectedInput | None = None  # input that they were trained on, if known


@dataclass(frozen=True)
class LoadedWeights:
    """The origin of a network's initial weights."""

    source: str  # file or package of the weights
    loaded: int  # tensors of the network that were loaded
    new: Mapping[str, str]  # its other tensors, which are newly initialized, with reasons by name
    skipped: Mapping[str, str]  # tensors of the source that were not loaded, with reasons by name

    @property
    def sentence(self) -> str:
        """A line about all tensors of the network and of the source."""
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


def read_weights(path: str | Path, member: str = "") -> WeightsFile:
    """Read a weights file, or the model.safetensors in a folder.

    Args:
        member: The name of a network, if the file is a blend; by default the one whose features
            are used.

    Raises:
        ModelError: If there is none, or it cannot be used.
    """
    path = Path(path)
    if path.is_dir():
        path = path / _IN_FOLDER
    if not path.is_file():
        raise ModelError(f"there is no weights file {path}")
    if path.suffix == ".safetensors":
        return _read_safetensors(path, member)
    if path.suffix not in _PICKLED:
        raise ModelError(f"{path} is not a weights file: pass {_KINDS}")
    if member:
        check_member(member, (), path)
    wrapper, tensors = _unwrap(path, _unpickle(path))
    source = f"{path} ({wrapper})" if wrapper else str(path)
    return WeightsFile(source, tensors, _read_expected_input(path))


def load_into(net: nn.Module, tensors: Mapping[str, Tensor], source: str) -> LoadedWeights:
    """Load tensors into a network by name.

    Prefixes of wrappers are dropped. For grey images, the first convolution of a colour network is
    summed over channels. A head for other classes starts at zero.

    Args:
        source: Their origin, for messages.

    Raises:
        ModelError: If anything except the head does not fit.
    """
    for name, tensor in tensors.items():
        if _is_unusual(tensor):
            raise ModelError(f"{source}: {name} is not a plain tensor of real numbers")
    tensors = _convert_for_timm(net, _rename_like(net, tensors, source))
    expected = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    tensors = {name: _fit_channels(tensor, expected.get(name)) for name, tensor in tensors.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    new = _find_new_tensors(net, expected, shapes, source)
    loaded = {
        name: tensor for name, tensor in tensors.items() if name in expected and name not in new
    }
    net.load_state_dict(loaded, strict=False)
    if any(name in new for name in head_tensors(net)):
        start_head_at_zero(net)
    skipped = {name: new.get(name, "no such tensor") for name in tensors if name not in loaded}
    return LoadedWeights(source, len(loaded), new, skipped)


def head_tensors(net: nn.Module) -> list[str]:
    """Return the names of the tensors of a network's heads, as in its state_dict."""
    heads = {id(head) for head in find_heads(net)}
    starts = tuple(f"{name}." for name, module in net.named_modules() if id(module) in heads)
    return [name for name in net.state_dict() if name.startswith(starts)]


def _read_safetensors(path: Path, member: str) -> WeightsFile:
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        if "facts" in metadata and "sha256" in metadata:
            return _read_own(path, member)
        if member:
            check_member(member, (), path)
        # The tensors are memory-mapped, because most callers only need `expected`.
        return WeightsFile(str(path), load_file(path), _read_expected_input(path))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} is truncated, damaged or not safetensors: {error}") from error


def _read_own(path: Path, member: str) -> WeightsFile:
    """Read a model file of Onsight, which contains the preprocessing."""
    try:
        tensors, facts = read_tensors(path)
    except DamagedFile as error:
        raise ModelError(str(error)) from error
    source = str(path)
    try:
        members = facts.get("members", {})
        if member or members:
            member = member or facts.get("feature_member", "")
            check_member(member, members, path)
            tensors, facts = take_under(member_prefix(member), tensors), members[member]
            source = f"member {member} of {path}"
        expected = ExpectedInput.of_run(Preprocessing.of(facts["image"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} is not the model of a run: pass its model.safetensors") from error
    weights = {name: tensor for name, tensor in tensors.items() if not name.startswith(_OWN_PREFIX)}
    return WeightsFile(source, weights, expected)


def _unpickle(path: Path) -> Any:
    try:
        # timm saves the arguments of a training run as a Namespace, which is plain data.
        with torch.serialization.safe_globals([argparse.Namespace]):
            _refuse_compressed(path)
            return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged file fails in many ways
        raise ModelError(f"{path} {_explain_unreadable(str(error))}") from error


def _refuse_compressed(path: Path) -> None:
    """Raise ValueError for a zip with more in it than its size, which torch.save never writes."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
        if unpacked > path.stat().st_size:
            raise ValueError(f"it is compressed, with {data_size(unpacked)} in it")


def _explain_unreadable(reason: str) -> str:
    """Explain in one line why torch cannot read a file, without its advice to run code."""
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
    """Return the key that the weights are saved under, if any, and the weights."""
    if not isinstance(content, Mapping):
        raise ModelError(f"{path} holds a {type(content).__name__}, not weights by name")
    key_used = ""
    for _ in range(_MAX_WRAPPERS):  # a pickle can contain itself
        wrapper = next((key for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if wrapper is None:
            break
        content, key_used = content[wrapper], wrapper
    tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        keys = joined([str(key) for key in content], 4)
        raise ModelError(f"{path} holds no tensors by name" + (f", only {keys}" if keys else ""))
    return key_used, tensors


def _read_expected_input(path: Path) -> ExpectedInput | None:
    """Read the pretrained_cfg in a config.json beside the weights, as on the Hugging Face Hub."""
    config = path.parent / "config.json"
    if not config.is_file():
        return None
    try:
        facts = read_json(config).get("pretrained_cfg")
        return None if facts is None else ExpectedInput.of_timm(facts)
    except (DataError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ModelError(f"the pretrained_cfg in {config} cannot be used: {error!r}") from error


def _is_unusual(tensor: Tensor) -> bool:
    is_plain = tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_quantized)
    return tensor.is_complex() or not is_plain


def _rename_like(net: nn.Module, tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    state = net.state_dict()
    renamed: dict[str, Tensor] = {}
    for stored_name, tensor in tensors.items():
        name = _drop_prefixes(stored_name, state)
        if name in renamed:
            raise ModelError(f"{source} holds two tensors for '{name}': pass one network's weights")
        renamed[name] = tensor
    return renamed


def _drop_prefixes(name: str, state: Mapping[str, Tensor]) -> str:
    """Drop prefixes of wrappers until the network has a tensor of the name."""
    while name not in state:
        prefix = next((text for text in _PREFIXES if name.startswith(text)), None)
        if prefix is None:
            break
        name = name.removeprefix(prefix)
    return name


def _convert_for_timm(net: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights with other names or for another image size, as timm does."""
    state, heads = net.state_dict(), set(head_tensors(net))
    if all(
        name in tensors and tensors[name].shape == state[name].shape for name in {*state} - heads
    ):
        return tensors
    convert = getattr(sys.modules[type(net).__module__], "checkpoint_filter_fn", None)
    if convert is None or not type(net).__module__.startswith("timm."):
        return tensors
    try:
        converted = convert(tensors, net)
        return {name: tensor for name, tensor in converted.items() if tensor is not None}
    except Exception:  # weights of another architecture, which are reported later
        return tensors


def _fit_channels(tensor: Tensor, expected: tuple[int, ...] | None) -> Tensor:
    shape = tuple(tensor.shape)
    if expected is None or len(shape) != 4 or shape[1] != 3 or expected[1:2] != (1,):
        return tensor
    # The sum over channels has the same output for a grey image as for three equal channels.
    return tensor.sum(dim=1, keepdim=True) if expected == (shape[0], 1, *shape[2:]) else tensor


def _find_new_tensors(
    net: nn.Module, expected: _Shapes, actual: _Shapes, source: str
) -> dict[str, str]:
    """Return the network's tensors that are newly initialized, with reasons.

    Raises:
        ModelError: If there are others than heads and counters.
    """
    misfits = [name for name, shape in expected.items() if actual.get(name) != shape]
    heads = head_tensors(net)
    may_be_new = {*heads, *(name for name in expected if name.endswith("num_batches_tracked"))}
    wrong = [name for name in misfits if name not in may_be_new]
    if wrong or len(misfits) == len(expected):
        fitting = len(expected) - len(misfits)
        raise ModelError(f"{source} {_describe_misfit(net, fitting, expected, actual, wrong)}")
    reasons = {name: _explain_misfit(expected[name], actual.get(name)) for name in misfits}
    # If a part of a head does not fit, all of it is new.
    head_reason = next((reasons[name] for name in heads if name in reasons), None)
    return (dict.fromkeys(heads, head_reason) if head_reason else {}) | reasons


def _explain_misfit(expected: tuple[int, ...], actual: tuple[int, ...] | None) -> str:
    if actual is None:
        return "not in the file"
    if expected and actual and expected[1:] == actual[1:]:
        return f"{plural(expected[0], 'class', 'classes')} instead of {actual[0]:,}"
    return f"{expected} instead of {actual}"


def _describe_misfit(
    net: nn.Module, fitting: int, expected: _Shapes, actual: _Shapes, wrong: list[str]
) -> str:
    network = type(net).__name__
    if not fitting:
        return (
            f"fits no layer of {network}: it has {joined(list(actual), 2)}, "
            f"the network {joined(list(expected), 2)}"
        )
    name = wrong[0]
    fault = f"is {actual[name]} instead of {expected[name]}" if name in actual else "is missing"
    if actual.get(name, ())[1:2] == (1,) and expected[name][1:2] == (3,):
        fault += " (these weights are for grey images: --channels 1)"
    return (
        f"is of another architecture than {network}: "
        f"{fitting:,} of {plural(len(expected), 'tensor')} fit, but {name} {fault}"
    )


def _group_by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        grouped.setdefault(reason, []).append(name)
    return grouped
