"""Heat maps: where in an image a network sees what speaks for a class.

Evidence of a place of a map is its activation times the gradient of the class's logit, less the
mean logit, summed over channels: HiResCAM (Draelos and Carin, arXiv:2011.08891). Behind layers that
mix all places, that tells nothing; there, the gradient is integrated on the way from an image of
one colour, the image's mean (integrated gradients: Sundararajan and others, arXiv:1703.01365).

B batch, C channels, D channels of a map, H height, W width, K classes; h, w: size of a map.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from onsight.errors import ConfigError, ModelError
from onsight.heatmaps.layers import SpatialLayers, spatial_layers
from onsight.models.classifier import Classifier
from onsight.models.trial_forward import left_as_it_was
from onsight_explain.devices import is_out_of_memory

_AT_ONCE = 16  # images
_STEPS = 8  # of the integral
_SHARPNESS = 3  # the product of three maps, so that many weak places do not outweigh a strong one


def heat_maps(classifier: Classifier, images: Tensor, classes: Tensor) -> NDArray[np.float32]:
    """Where each image speaks for a class: float32 (B, H, W), 0 to 1, its hottest place 1.

    images: uint8 (B, H, W, C); classes: int64 (B,). All 0 if nothing speaks for the class. It is
    the geometric mean of the evidence in up to three maps, cubed, computed in float32; the network
    is left as it was. Raises ModelError for one that has no maps, ConfigError without captum.
    """
    require_captum()
    net, height, width = classifier.net, *images.shape[1:3]
    targets = classes.to(classifier.device)
    if len(images) == 0:
        return np.zeros((0, height, width), np.float32)
    heats = []
    with torch.inference_mode(False), left_as_it_was(net):
        net.eval()
        found = None
        for part, target in zip(images.split(_AT_ONCE), targets.split(_AT_ONCE), strict=True):
            inputs = classifier.normalization.apply(part.to(classifier.device))
            found = found or spatial_layers(net, inputs[:1])
            heat = _heat(_evidence(net, found, inputs, target), (height, width))
            heats.append(heat.cpu().numpy())
    return np.concatenate(heats)


def require_captum() -> None:
    """Raise ConfigError unless captum is installed."""
    try:
        import captum.attr  # noqa: F401
    except ImportError as error:
        raise ConfigError("heat maps need captum: pip install 'onsight[heatmaps]'") from error


def _evidence(
    net: nn.Module, found: SpatialLayers, inputs: Tensor, classes: Tensor
) -> list[Tensor]:
    """What each place of each map adds to a class's logit, (B, h, w) each. Raises ModelError."""
    from captum.attr import LayerGradientXActivation, LayerIntegratedGradients

    def centred(values: Tensor) -> Tensor:  # softmax ignores what is added to all logits
        logits: Tensor = net(values)
        return logits - logits.mean(dim=1, keepdim=True)

    plain = inputs.mean(dim=(2, 3), keepdim=True).expand_as(inputs)
    inputs = inputs.requires_grad_()
    try:
        if found.mixed or len(found.layers) == 1:
            maps = [
                LayerIntegratedGradients(centred, layer).attribute(
                    inputs, plain, classes, n_steps=_STEPS, internal_batch_size=_AT_ONCE
                )
                for layer in found.layers
            ]
        else:
            maps = LayerGradientXActivation(centred, found.layers).attribute(inputs, classes)
    except Exception as error:  # a net can refuse gradients in any way; all mean the same here
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        raise ModelError(
            f"{type(net).__name__} has no heat maps, because its gradients cannot be computed: "
            f"{type(error).__name__}: {error}"
        ) from error
    return [values.detach().sum(dim=1) for values in maps]


def _heat(evidence: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """The maps (B, h, w) as one of the image's (height, width)."""
    product = torch.ones(())
    for values in evidence:
        large = F.interpolate(values.relu().unsqueeze(1), size, mode="bilinear")[:, 0]
        product = _to_one(large) * product
    return _to_one(product ** (_SHARPNESS / len(evidence)))


def _to_one(values: Tensor) -> Tensor:
    """Values (B, H, W) divided by the largest of each image, unless all are 0."""
    return values / values.amax(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
