"""Which models `onsight models` shows, and where the weights of each are."""

from fnmatch import fnmatchcase

from onsight.errors import ModelError, did_you_mean
from onsight.models.catalog import model_names, own_names
from onsight.models.hub import is_cached
from onsight.models.pretrained import has_offline_weights, offline_models
from onsight.models.timm_nets import timm_facts

# Good for their cost on a CPU or a single GPU, smallest first.
_RECOMMENDED = (
    "mobilenetv4_conv_small",
    "mobilenetv3_large_100",
    "resnet10t",
    "tf_efficientnet_lite0",
    "tf_efficientnet_lite1",
    "tf_efficientnet_lite2",
    "efficientnet_b0",
    "convnext_atto",
    "vit_tiny_patch16_224",
    "regnety_016",
    "resnet18",
    "tiny_vit_11m_224",
    "resnet50",
    "vit_small_patch16_224",
    "convnext_tiny",
)


def short_list() -> list[str]:
    """Onsight's own models, those with weights offline, and some of timm's worth trying."""
    return list(dict.fromkeys([*own_names(), *offline_models(), *_RECOMMENDED]))


def matching(pattern: str) -> list[str]:
    """The models whose names contain a text, or match a pattern with * or ?. Raises ModelError."""
    wild = any(sign in pattern for sign in "*?")
    names = model_names()
    found = [name for name in names if fnmatchcase(name, pattern if wild else f"*{pattern}*")]
    if not found:
        raise ModelError(f"no model matches '{pattern}'.{did_you_mean(pattern, names)}")
    return found


def weights_place(name: str) -> str:
    """Where a model's published weights are: "here", "Hub" (needs a network) or "none"."""
    if name in own_names():
        return "none"
    facts = timm_facts(name)
    if has_offline_weights(name):
        return "here"
    if facts is None or not facts.has_weights:
        return "none"
    return "here" if facts.hf_hub_id and is_cached(facts.hf_hub_id) else "Hub"
