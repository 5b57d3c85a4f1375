"""timm's networks: made for given images and classes, with published weights or without."""

from typing import Any

from torch import nn

from onsight.errors import ModelError
from onsight.models.head import start_head_at_zero
from onsight.models.hub import hub_weights, noting_missing
from onsight.models.pretrained import OFFLINE_CHOICE, has_offline_weights, load_offline_weights
from onsight.models.weights import LoadedWeights, head_tensors
from onsight.words import plural


def timm_facts(name: str) -> Any:
    """What timm knows about the published weights of one of its models, or None.

    Raises ModelError for a tag that it does not know.
    """
    import timm

    architecture, _, tag = name.partition(".")
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        tagged = timm.list_models(f"{architecture}.*", pretrained=True)
        raise ModelError(
            f"timm has no weights '{tag}' of '{architecture}'. There are: {', '.join(tagged)}"
        ) from error


def make_timm(
    name: str, facts: Any, shape: tuple[int, int, int], classes: int, pretrained: bool
) -> tuple[nn.Module, LoadedWeights | None]:
    """A network of timm for images (C, H, W) and K classes, and what it started from.

    Raises ModelError, and whatever timm raises for sizes that a network does not take.
    """
    if not pretrained:
        return _create(name, facts, shape, classes), None
    if shape[0] not in (1, 3):
        raise ModelError(f"pretrained weights are for 1 or 3 channels, not {shape[0]}")
    if has_offline_weights(name):
        net = _create(name, facts, shape, classes)
        return net, load_offline_weights(net, name)
    if facts is None or not facts.has_weights:
        raise ModelError(f"timm has no published weights of '{name}'. {OFFLINE_CHOICE}")
    with hub_weights(name, facts.hf_hub_id), noting_missing() as missing:
        net = _create(name, facts, shape, classes, pretrained=True)
    return net, _loaded_by_timm(net, facts, classes, missing)


def _loaded_by_timm(net: nn.Module, facts: Any, classes: int, missing: list[str]) -> LoadedWeights:
    head, own = set(head_tensors(net)), net.state_dict()
    reason = f"{plural(classes, 'class', 'classes')} instead of {facts.num_classes:,}"
    new = {name: reason if name in head else "not published" for name in own if name in {*missing}}
    if head & {*new}:
        start_head_at_zero(net)
    return LoadedWeights(f"the Hugging Face Hub ({facts.hf_hub_id})", len(own) - len(new), new, {})


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
