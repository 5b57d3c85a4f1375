"""Heat maps: which regions of an image support the prediction of a class.

The evidence at a place of a map is its activation times the gradient of the class's logit, less the
mean logit, summed over channels: HiResCAM (Draelos and Carin, arXiv:2011.08891). Behind layers that
mix all places, it is no evidence about a place; there, the gradient is integrated along a path from
an image of one colour, the image's mean (integrated gradients: Sundararajan and others,
arXiv:1703.01365).

B batch, C channels, D channels of a map, H height, W width, K classes; h, w: size of a map.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from onsight.errors import ModelError
from onsight.installation import require
from onsight.models.classifier import Classifier, ImageClassifier
from onsight.models.trial_forward import preserving_modes, trial_forward
from onsight.models.unsuitable import unsuitable_error
from onsight_explain.devices import is_out_of_memory

_IMAGES_AT_ONCE = 16
_INTEGRATION_STEPS = 8
_SHARPNESS = 3  # the product of three maps, so that many weak places do not outweigh a strong one
_MIN_SIDE = 7  # rows and columns: in smaller maps, each place covers most of a small image
_MAX_LAYERS = 3


def heat_maps(classifier: ImageClassifier, images: Tensor, classes: Tensor) -> NDArray[np.float32]:
    """Return where each image supports a class: float32 (B, H, W), 0 to 1, its hottest place 1.

    images: uint8 (B, H, W, C); classes: int64 (B,). All 0 if nothing supports the class. That of a
    network is the geometric mean of the evidence in up to three maps, cubed, computed in float32;
    that of a blend is the weighted mean of those of its members that have maps. Networks are left
    as they were. Raises ModelError if no network has maps, ConfigError without captum.
    """
    require_captum()
    if len(images) == 0:
        return np.zeros(images.shape[:3], np.float32)
    total, errors = torch.zeros(images.shape[:3]), []
    for name, member in classifier.members.items():
        try:
            total += classifier.weights[name] * _network_heat(member, images, classes)
        except ModelError as error:
            errors.append(error)
    if len(errors) == len(classifier.members):
        raise errors[0]
    return _scale_to_one(total).numpy()


def _network_heat(classifier: Classifier, images: Tensor, classes: Tensor) -> Tensor:
    """Return the heat maps (B, H, W) of one network, on the CPU. Raises ModelError."""
    net, height, width = classifier.net, *images.shape[1:3]
    targets = classes.to(classifier.device)
    heats = []
    with torch.inference_mode(False), preserving_modes(net):
        net.eval()
        spatial = None
        parts = zip(images.split(_IMAGES_AT_ONCE), targets.split(_IMAGES_AT_ONCE), strict=True)
        for part, target in parts:
            inputs = classifier.normalization.apply(part.to(classifier.device))
            spatial = spatial or find_spatial_layers(net, inputs[:1])
            heat = _combine(_evidence(net, spatial, inputs, target), (height, width))
            heats.append(heat.cpu())
    return torch.cat(heats)


def require_captum() -> None:
    """Raise ConfigError unless captum is installed."""
    require("captum", "heatmaps", "drawing heat maps")


@dataclass
class SpatialLayers:
    """The layers of a network whose output still has rows and columns."""

    layers: list[nn.Module]  # layers with maps (B, D, h, w), the finest first
    mixed: bool  # later layers mix all places, as in a transformer


def find_spatial_layers(net: nn.Module, images: Tensor) -> SpatialLayers:
    """Find the last layer at each of the last three map sizes with at least 7 rows and columns.

    If no map is so large, use the last at the largest size. images: float (B, C, H, W), for a
    trial forward pass. Raises ModelError for a network without convolutions.
    """
    outputs = _LayerOutputs()
    hooks = [
        module.register_forward_hook(outputs.record)
        for module in net.modules()
        if module is not net
    ]
    try:
        trial_forward(net, images)
    finally:
        for hook in hooks:
            hook.remove()
    if not outputs.last:
        raise unsuitable_error(
            net,
            "heat maps",
            "it has no convolution whose output has rows and columns",
            "Use a convolutional model, such as compact or resnet18",
        )
    sizes = sorted(outputs.last, key=math.prod, reverse=True)
    large = [size for size in sizes if min(size) >= _MIN_SIDE] or sizes[:1]
    layers = [outputs.last[size] for size in large[-_MAX_LAYERS:]]
    return SpatialLayers(layers, outputs.has_tokens)


@dataclass
class _LayerOutputs:
    """The outputs of layers, in the order of the forward pass."""

    # the last layer with a map of each size (h, w)
    last: dict[tuple[int, int], nn.Module] = field(default_factory=dict)
    has_tokens: bool = False

    def record(self, module: nn.Module, _: object, output: object) -> None:
        if not isinstance(output, Tensor):
            return
        if output.dim() == 4:
            size = output.shape[2], output.shape[3]
            # Queries of attention have four dimensions too, but not a convolution's size.
            if min(size) > 1 and (isinstance(module, nn.Conv2d) or size in self.last):
                self.last[size] = module
        elif output.dim() == 3 and self.last:
            self.has_tokens |= output.shape[1] >= min(map(math.prod, self.last))


def _evidence(
    net: nn.Module, spatial: SpatialLayers, inputs: Tensor, classes: Tensor
) -> list[Tensor]:
    """Return the contribution of each place of each map to a class's logit: (B, h, w) per map.

    Raises ModelError.
    """
    from captum.attr import LayerGradientXActivation, LayerIntegratedGradients

    def centred(values: Tensor) -> Tensor:  # softmax ignores a constant added to all logits
        logits: Tensor = net(values)
        return logits - logits.mean(dim=1, keepdim=True)

    plain = inputs.mean(dim=(2, 3), keepdim=True).expand_as(inputs)
    inputs = inputs.requires_grad_()
    try:
        if spatial.mixed or len(spatial.layers) == 1:
            maps = [
                LayerIntegratedGradients(centred, layer).attribute(
                    inputs,
                    plain,
                    classes,
                    n_steps=_INTEGRATION_STEPS,
                    internal_batch_size=_IMAGES_AT_ONCE,
                )
                for layer in spatial.layers
            ]
        else:
            maps = LayerGradientXActivation(centred, spatial.layers).attribute(inputs, classes)
    except Exception as error:  # a net can refuse gradients in any way; all mean the same here
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        reason = f"its gradients cannot be computed: {type(error).__name__}: {error}"
        raise unsuitable_error(net, "heat maps", reason) from error
    return [values.detach().sum(dim=1) for values in maps]


def _combine(evidence: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """Combine maps (B, h, w) into one of the image's (height, width)."""
    product = torch.ones(())
    for values in evidence:
        large = F.interpolate(values.relu().unsqueeze(1), size, mode="bilinear")[:, 0]
        product = _scale_to_one(large) * product
    return _scale_to_one(product ** (_SHARPNESS / len(evidence)))


def _scale_to_one(values: Tensor) -> Tensor:
    """Divide values (B, H, W) by the largest of each image, unless all are 0."""
    return values / values.amax(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
