"""Makes networks by name: built-in ones, timm's, and a user's package.module:callable.

C channels, H height, W width, K classes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from onsight.errors import ModelError, did_you_mean
from onsight.models.classic import Conv3, LeNet, Linear, Quick
from onsight.models.compact import Compact, Sprint
from onsight.models.preprocessing import ExpectedInput
from onsight.models.timm_nets import OFFLINE_CHOICE, make_timm, timm_facts
from onsight.models.trial_forward import check_output
from onsight.models.user import make_user_model
from onsight.models.weights import LoadedWeights, load_into, read_weights
from onsight.text import plural


class _BuiltinNetwork(NamedTuple):
    """A network of Onsight."""

    # Makes the network for images (C, H, W) and K classes.
    make: Callable[[tuple[int, int, int], int], nn.Module]
    size: tuple[int, int] | None = None  # (height, width) it is designed for; None for any


_BUILTIN = {
    "compact": _BuiltinNetwork(Compact),
    "sprint": _BuiltinNetwork(Sprint),
    "lenet": _BuiltinNetwork(LeNet, (32, 32)),
    "conv3": _BuiltinNetwork(Conv3, (50, 50)),
    "quick": _BuiltinNetwork(Quick),
    "linear": _BuiltinNetwork(Linear),
}


def builtin_names() -> list[str]:
    """Return the names of the built-in networks."""
    return [*_BUILTIN]


def model_names() -> list[str]:
    """Return the names of all networks: built-in ones first, then timm's."""
    import timm

    return [*_BUILTIN, *timm.list_models()]


def is_user_spec(name: str) -> bool:
    """Return whether a model name refers to a user's code: package.module:callable."""
    return ":" in name


def make_model(
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    *,
    pretrained: bool = False,
    weights: str = "",
    member: str = "",
    report: Callable[[LoadedWeights], object] = lambda loaded: None,
) -> nn.Module:
    """Make a network and check it with a trial forward pass.

    The network maps float (B, C, H, W) to logits (B, K). The same random state leads to the same
    weights.

    Args:
        shape: The shape (C, H, W) of an image.
        pretrained: Start from published weights.
        weights: A file to start from instead of published weights.
        member: The name of the network to start from, if the file is a blend.
        report: Called with the loaded weights, if any.

    Raises:
        ModelError: If the network or the weights cannot be used.
    """
    published = pretrained and not weights
    if published and (name in _BUILTIN or is_user_spec(name)):
        raise ModelError(f"'{name}' has no published weights. {OFFLINE_CHOICE}")
    net, loaded = _make(name, shape, classes, published)
    if weights:
        loaded = load_weights(net, weights, member)
    if loaded:
        report(loaded)
    return net


def load_weights(net: nn.Module, path: str, member: str = "") -> LoadedWeights:
    """Load a weights file, or a member of a blend, into a network. Raises ModelError."""
    file = read_weights(path, member)
    return load_into(net, file.tensors, file.source)


def preferred_size(name: str, weights: str = "", member: str = "") -> tuple[int, int] | None:
    """Return the (height, width) that weights were trained at or a model was designed for.

    Args:
        weights: A weights file, if the network starts from it.
        member: The name of a network, if the file is a blend.

    Returns:
        The size, or None if any size is suitable or nothing is known.

    Raises:
        ModelError: If there is no such model or file.
    """
    expected = read_weights(weights, member).expected if weights else None
    if expected and expected.size:
        return expected.size
    if name in _BUILTIN:
        return _BUILTIN[name].size
    facts = None if is_user_spec(name) else _facts(name)
    return None if facts is None else (facts.input_size[1], facts.input_size[2])


def scalable_side(name: str) -> int | None:
    """Return the side that published weights were trained at, None if they take no other size.

    Raises:
        ModelError: If there is no such model.
    """
    facts = None if name in _BUILTIN or is_user_spec(name) else _facts(name)
    if facts is None or facts.fixed_input_size or facts.input_size[1] != facts.input_size[2]:
        return None
    return int(facts.input_size[1])


def expected_input(name: str, weights: str = "", member: str = "") -> ExpectedInput | None:
    """Return the input that a weights file or a model's published weights were trained on.

    Args:
        weights: A weights file, if the network starts from it.
        member: The name of a network, if the file is a blend.

    Returns:
        The input, or None if nothing is known.

    Raises:
        ModelError: If there is no such model or file.
    """
    expected = read_weights(weights, member).expected if weights else None
    if expected or name in _BUILTIN or is_user_spec(name):
        return expected
    facts = _facts(name)
    return None if facts is None else ExpectedInput.of_timm(vars(facts))


def _make(
    name: str, shape: tuple[int, int, int], classes: int, pretrained: bool
) -> tuple[nn.Module, LoadedWeights | None]:
    if is_user_spec(name):
        return make_user_model(name, shape, classes), None
    if name not in _BUILTIN:
        return _make_timm(name, shape, classes, pretrained)
    net = _BUILTIN[name].make(shape, classes)
    check_output(net, shape, classes, name)
    return net, None


def _make_timm(
    name: str, shape: tuple[int, int, int], classes: int, pretrained: bool
) -> tuple[nn.Module, LoadedWeights | None]:
    facts = _facts(name)
    hint = _size_hint(facts, shape)
    try:
        net, loaded = make_timm(name, facts, shape, classes, pretrained)
    except ModelError:
        raise
    except Exception as error:  # timm's networks reject sizes in many ways
        raise ModelError(
            f"timm cannot make '{name}' for images of {shape[1]}x{shape[2]} with "
            f"{plural(shape[0], 'channel')}: {type(error).__name__}: {error}{hint}"
        ) from error
    try:
        check_output(net, shape, classes, name)
    except ModelError as error:
        raise ModelError(f"{error}{hint}") from error
    return net, loaded


def _facts(name: str) -> Any:
    import timm

    if not timm.is_model(name.partition(".")[0]):
        raise ModelError(
            f"there is no model '{name}'.{did_you_mean(name, model_names())} "
            "`onsight models '*'` lists them all; for your own, use package.module:callable"
        )
    return timm_facts(name)


def _size_hint(facts: Any, shape: tuple[int, int, int]) -> str:
    size = None if facts is None else tuple(facts.input_size[1:])
    if size is None or size == shape[1:]:
        return ""
    return f" (it was made for --image-size {size[0]}x{size[1]})"
