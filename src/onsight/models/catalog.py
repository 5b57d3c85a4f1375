"""Networks by name: Onsight's own, timm's, and a user's package.module:callable."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from onsight.errors import ModelError, did_you_mean
from onsight.models.classic import Conv3, LeNet, Linear, Quick
from onsight.models.compact import Compact
from onsight.models.expected_input import ExpectedInput
from onsight.models.pretrained import OFFLINE_CHOICE
from onsight.models.sprint import Sprint
from onsight.models.timm_nets import make_timm, timm_facts
from onsight.models.trial_forward import check_output
from onsight.models.user import make_user_model
from onsight.models.weights import LoadedWeights, fill
from onsight.models.weights_file import read_weights
from onsight.words import plural


class _Own(NamedTuple):
    """One of Onsight's networks, made from a shape (C, H, W) and a number of classes.

    size: the (height, width) in pixels that it was made for, None if it takes any.
    """

    make: Callable[[tuple[int, int, int], int], nn.Module]
    size: tuple[int, int] | None = None


_OWN = {
    "compact": _Own(Compact),
    "sprint": _Own(Sprint),
    "lenet": _Own(LeNet, (32, 32)),
    "conv3": _Own(Conv3, (50, 50)),
    "quick": _Own(Quick),
    "linear": _Own(Linear),
}


def own_names() -> list[str]:
    """The names of Onsight's own networks."""
    return [*_OWN]


def model_names() -> list[str]:
    """Onsight's own names first, then timm's."""
    import timm

    return [*_OWN, *timm.list_models()]


def is_user_spec(name: str) -> bool:
    """Whether a model name refers to a user's code, package.module:callable."""
    return ":" in name


def make_model(
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    *,
    pretrained: bool = False,
    weights: str = "",
    tell: Callable[[LoadedWeights], object] = lambda loaded: None,
) -> nn.Module:
    """Make a network for images (C, H, W) and K classes, and check it with a trial forward.

    It maps float (B, C, H, W) to logits (B, K). The same random state gives the same weights.
    weights: a file to start from, in place of published weights; tell is called with what was
    loaded. Raises ModelError.
    """
    published = pretrained and not weights
    if published and (name in _OWN or is_user_spec(name)):
        raise ModelError(f"'{name}' has no published weights. {OFFLINE_CHOICE}")
    net, loaded = _make(name, shape, classes, published)
    if weights:
        loaded = load_weights(net, weights)
    if loaded:
        tell(loaded)
    return net


def load_weights(net: nn.Module, path: str) -> LoadedWeights:
    """Start a network from a weights file. Raises ModelError."""
    file = read_weights(path)
    return fill(net, file.tensors, file.source)


def preferred_size(name: str, weights: str = "") -> tuple[int, int] | None:
    """The (height, width) that weights were trained at, or that a model was made for, if any.

    Raises ModelError.
    """
    given = read_weights(weights).expected if weights else None
    if given and given.size:
        return given.size
    if name in _OWN:
        return _OWN[name].size
    facts = None if is_user_spec(name) else _facts(name)
    return None if facts is None else (facts.input_size[1], facts.input_size[2])


def expected_input(name: str, weights: str = "") -> ExpectedInput | None:
    """The images that a weights file, or a model's published weights, were trained on.

    None if nothing says so. Raises ModelError.
    """
    given = read_weights(weights).expected if weights else None
    if given or name in _OWN or is_user_spec(name):
        return given
    facts = _facts(name)
    return None if facts is None else ExpectedInput.of_timm(vars(facts))


def _make(
    name: str, shape: tuple[int, int, int], classes: int, pretrained: bool
) -> tuple[nn.Module, LoadedWeights | None]:
    if is_user_spec(name):
        return make_user_model(name, shape, classes), None
    if name not in _OWN:
        return _make_timm(name, shape, classes, pretrained)
    net = _OWN[name].make(shape, classes)
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
    except Exception as error:  # timm's nets reject sizes in many ways
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
            "`onsight models '*'` lists them all; for your own, give package.module:callable"
        )
    return timm_facts(name)


def _size_hint(facts: Any, shape: tuple[int, int, int]) -> str:
    wanted = None if facts is None else tuple(facts.input_size[1:])
    if wanted is None or wanted == shape[1:]:
        return ""
    return f" (it was made for --image-size {wanted[0]}x{wanted[1]})"
