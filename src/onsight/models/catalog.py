"""Networks by name: Onsight's own, timm's, and a user's package.module:callable."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from onsight.errors import ModelError, did_you_mean
from onsight.models.classic import Conv3, LeNet, Linear, Quick
from onsight.models.compact import Compact
from onsight.models.pretrained import (
    OFFLINE_CHOICE,
    has_offline_weights,
    hub_weights,
    load_offline_weights,
)
from onsight.models.trial_forward import check_output
from onsight.models.user import make_user_model
from onsight.words import plural


class _Own(NamedTuple):
    """One of Onsight's networks, made from a shape (C, H, W) and a number of classes.

    size: the (height, width) in pixels that it was made for, None if it takes any.
    """

    make: Callable[[tuple[int, int, int], int], nn.Module]
    size: tuple[int, int] | None = None


_OWN = {
    "compact": _Own(Compact),
    "lenet": _Own(LeNet, (32, 32)),
    "conv3": _Own(Conv3, (50, 50)),
    "quick": _Own(Quick),
    "linear": _Own(Linear),
}


def model_names() -> list[str]:
    """Onsight's own names first, then timm's."""
    import timm

    return [*_OWN, *timm.list_models()]


def is_user_spec(name: str) -> bool:
    """Whether a model name refers to a user's code, package.module:callable."""
    return ":" in name


def make_model(
    name: str, shape: tuple[int, int, int], classes: int, *, pretrained: bool = False
) -> nn.Module:
    """Make a network for pictures (C, H, W) and K classes, and check it with a trial forward.

    It maps float (B, C, H, W) to logits (B, K). The same random state gives the same weights.
    Raises ModelError.
    """
    if pretrained and (name in _OWN or is_user_spec(name)):
        raise ModelError(f"'{name}' has no published weights. {OFFLINE_CHOICE}")
    if is_user_spec(name):
        return make_user_model(name, shape, classes)
    if name not in _OWN:
        return _make_timm(name, shape, classes, pretrained)
    net = _OWN[name].make(shape, classes)
    check_output(net, shape, classes, name)
    return net


def preferred_size(name: str) -> tuple[int, int] | None:
    """The (height, width) that a model was made for, None if it takes any. Raises ModelError."""
    if name in _OWN:
        return _OWN[name].size
    facts = None if is_user_spec(name) else _timm_facts(name)
    return None if facts is None else (facts.input_size[1], facts.input_size[2])


def pretrained_normalization(name: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The (mean, deviation) of each channel that published weights expect, pixels from 0 to 1.

    None for a model without published weights. Raises ModelError for an unknown name.
    """
    facts = None if name in _OWN or is_user_spec(name) else _timm_facts(name)
    return None if facts is None else (tuple(facts.mean), tuple(facts.std))


def _make_timm(name: str, shape: tuple[int, int, int], classes: int, pretrained: bool) -> nn.Module:
    facts = _timm_facts(name)
    hint = _size_hint(facts, shape)
    try:
        net = _build_timm(name, facts, shape, classes, pretrained)
    except ModelError:
        raise
    except Exception as error:  # timm's nets reject sizes in many ways
        raise ModelError(
            f"timm cannot make '{name}' for pictures of {shape[1]}x{shape[2]} with "
            f"{plural(shape[0], 'channel')}: {type(error).__name__}: {error}{hint}"
        ) from error
    try:
        check_output(net, shape, classes, name)
    except ModelError as error:
        raise ModelError(f"{error}{hint}") from error
    return net


def _size_hint(facts: Any, shape: tuple[int, int, int]) -> str:
    wanted = None if facts is None else tuple(facts.input_size[1:])
    if wanted is None or wanted == shape[1:]:
        return ""
    return f" (it was made for --image-size {wanted[0]}x{wanted[1]})"


def _build_timm(
    name: str, facts: Any, shape: tuple[int, int, int], classes: int, pretrained: bool
) -> nn.Module:
    if not pretrained:
        return _create(name, facts, shape, classes)
    if has_offline_weights(name):
        net = _create(name, facts, shape, classes)
        load_offline_weights(net, shape[0], classes)
        return net
    if facts is None or not facts.has_weights:
        raise ModelError(f"timm has no published weights of '{name}'. {OFFLINE_CHOICE}")
    with hub_weights(name, facts.hf_hub_id):
        return _create(name, facts, shape, classes, pretrained=True)


def _create(
    name: str, facts: Any, shape: tuple[int, int, int], classes: int, pretrained: bool = False
) -> nn.Module:
    import timm

    arguments: dict[str, Any] = {
        "pretrained": pretrained,
        "num_classes": classes,
        "in_chans": shape[0],
    }
    # timm marks nets that are built for one size, which they take as img_size.
    if facts is not None and facts.fixed_input_size:
        try:
            sized: nn.Module = timm.create_model(name, img_size=shape[1:], **arguments)
            return sized
        except TypeError as error:
            if "img_size" not in str(error):
                raise
    unsized: nn.Module = timm.create_model(name, **arguments)
    return unsized


def _timm_facts(name: str) -> Any:
    """What timm knows about a model's published weights, or None. Raises ModelError."""
    import timm

    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise ModelError(
            f"there is no model '{name}'.{did_you_mean(name, model_names())} "
            "`onsight models` lists them all; for your own, give package.module:callable"
        )
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        tagged = timm.list_models(f"{architecture}.*", pretrained=True)
        raise ModelError(
            f"timm has no weights '{tag}' of '{architecture}'. There are: {', '.join(tagged)}"
        ) from error
