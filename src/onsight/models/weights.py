"""Filling a network with weights, and counting what was loaded, left out and newly started."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from onsight.errors import ModelError
from onsight.models.head import heads_of, start_head_at_zero
from onsight.words import listed, plural

_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")  # of wrappers around a network
_NAMES_SHOWN = 4
_Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class LoadedWeights:
    """What a network started from.

    loaded: how many of its tensors came from source; new: the others by name, with the reason;
    skipped: the tensors of source that it has no place for, with the reason.
    """

    source: str
    loaded: int
    new: Mapping[str, str]
    skipped: Mapping[str, str]

    @property
    def sentence(self) -> str:
        """One line that accounts for every tensor of the network and of the source."""
        total = self.loaded + len(self.new)
        parts = [f"{self.loaded:,} of {plural(total, 'tensor')} from {self.source}"]
        parts += [
            f"{_names(names)} {'starts' if len(names) == 1 else 'start'} new ({reason})"
            for reason, names in _by_reason(self.new).items()
        ]
        unused = {name: why for name, why in self.skipped.items() if name not in self.new}
        parts += [
            f"{_names(names)} of the file not used ({reason})"
            for reason, names in _by_reason(unused).items()
        ]
        return "weights: " + "; ".join(parts)


def fill(net: nn.Module, tensors: Mapping[str, Tensor], source: str) -> LoadedWeights:
    """Fill a network with tensors by name; a head for other classes starts at zero.

    Prefixes of wrappers are dropped, and a first convolution for colour is summed for grey
    images. Raises ModelError unless everything but the head fits.
    """
    given = _for_timm(net, _named_as(net, tensors, source))
    own = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    given = {name: _for_channels(tensor, own.get(name)) for name, tensor in given.items()}
    new = _new_tensors(net, own, {name: tuple(one.shape) for name, one in given.items()}, source)
    loaded = {name: one for name, one in given.items() if name in own and name not in new}
    net.load_state_dict(loaded, strict=False)
    if any(name in new for name in head_tensors(net)):
        start_head_at_zero(net)
    skipped = {name: new.get(name, "no such tensor") for name in given if name not in loaded}
    return LoadedWeights(source, len(loaded), new, skipped)


def head_tensors(net: nn.Module) -> list[str]:
    """The names of the tensors in a network's heads, as in its state_dict."""
    heads = {id(head) for head in heads_of(net)}
    starts = tuple(f"{name}." for name, module in net.named_modules() if id(module) in heads)
    return [name for name in net.state_dict() if name.startswith(starts)]


def _named_as(net: nn.Module, tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    own = net.state_dict()
    named: dict[str, Tensor] = {}
    for stored, tensor in tensors.items():
        name = _own_name(stored, own)
        if name in named:
            raise ModelError(f"{source} holds two tensors for '{name}': give one network's weights")
        named[name] = tensor
    return named


def _own_name(stored: str, own: Mapping[str, Tensor]) -> str:
    """A tensor's name without the prefixes of wrappers that the network itself does not have."""
    name = stored
    while name not in own:
        prefix = next((one for one in _PREFIXES if name.startswith(one)), None)
        if prefix is None:
            break
        name = name.removeprefix(prefix)
    return name


def _for_timm(net: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights under their authors' names, or for another image size, as timm converts them."""
    own, heads = net.state_dict(), set(head_tensors(net))
    if all(name in tensors and tensors[name].shape == own[name].shape for name in {*own} - heads):
        return tensors
    convert = getattr(sys.modules[type(net).__module__], "checkpoint_filter_fn", None)
    if convert is None or not type(net).__module__.startswith("timm."):
        return tensors
    try:
        return {name: one for name, one in convert(tensors, net).items() if one is not None}
    except Exception:  # it expects its own architecture; what does not fit is reported by name
        return tensors


def _for_channels(tensor: Tensor, wanted: tuple[int, ...] | None) -> Tensor:
    shape = tuple(tensor.shape)
    if wanted is None or len(shape) != 4 or shape[1] != 3 or wanted[1:2] != (1,):
        return tensor
    # A grey image is one with three equal channels: the sum gives the same maps.
    return tensor.sum(dim=1, keepdim=True) if wanted == (shape[0], 1, *shape[2:]) else tensor


def _new_tensors(net: nn.Module, own: _Shapes, given: _Shapes, source: str) -> dict[str, str]:
    """The network's tensors that start new, with the reason; only its head and counters may."""
    misfits = [name for name, shape in own.items() if given.get(name) != shape]
    heads = head_tensors(net)
    may_be_new = {*heads, *(name for name in own if name.endswith("num_batches_tracked"))}
    wrong = [name for name in misfits if name not in may_be_new]
    if wrong or len(misfits) == len(own):
        raise ModelError(_misfit(source, net, len(own) - len(misfits), own, given, wrong))
    reasons = {name: _reason(own[name], given.get(name)) for name in misfits}
    # A head is started as a whole: half of one means nothing.
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
            f"{source} fits no layer of {type(net).__name__}: it has {listed(list(given), 2)}, "
            f"the network {listed(list(own), 2)}"
        )
    name = wrong[0]
    found = f"is {given[name]} instead of {own[name]}" if name in given else "is missing"
    if given.get(name, ())[1:2] == (1,) and own[name][1:2] == (3,):
        found += " (these weights are for grey images: --channels 1)"
    return (
        f"{source} is of another architecture than {type(net).__name__}: "
        f"{fitting:,} of {plural(len(own), 'tensor')} fit, but {name} {found}"
    )


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        grouped.setdefault(reason, []).append(name)
    return grouped


def _names(names: list[str]) -> str:
    return listed(names, _NAMES_SHOWN)
