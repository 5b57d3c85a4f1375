"""A model file run by torch, with the forward pass that evaluation shares."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onsight.data.pillow_pixels import Pixels
from onsight.evaluation.out_of_distribution import scores_of, with_scores
from onsight.evaluation.per_image import BATCH_SIZE, evaluation_batch
from onsight.features.feature_pass import with_features
from onsight.hardware.devices import choose_device
from onsight.inference.runner import Outputs, runner_facts
from onsight.inference.side_by_side import SideBySide
from onsight.models.classifier import Classifier
from onsight.models.file import ModelFile, build_model, load_model_file
from onsight.models.memory_format import set_memory_format
from onsight.models.user import make_user_model


class TorchRunner:
    """A Runner whose network is torch's, on any device."""

    def __init__(self, file: ModelFile, device: torch.device, module: nn.Module | None) -> None:
        prepared = file.preprocessing
        self.file = replace(file, weights={})  # the network has its own copy
        self.classes = file.classes
        self.format = prepared.format
        net = set_memory_format(build_model(file, module), prepared.input_shape, device)
        self.classifier = Classifier(
            net,
            prepared.normalization,
            prepared.precision,
            device,
            file.temperature,
            file.out_of_distribution,
        )
        self.threshold = file.out_of_distribution.threshold if file.out_of_distribution else None
        size = evaluation_batch(device, self.format.shown)
        # One batch of small images occupies all cores; a user's network may keep state in itself.
        is_shared = device.type == "cpu" and size < BATCH_SIZE and module is None
        self._parts = SideBySide(size) if is_shared else None
        self.at_once = size * (self._parts.count if self._parts else 1)

    @property
    def facts(self) -> Mapping[str, object]:
        """The network, its device and input, the classes, and how good it is."""
        return runner_facts(
            self.file.model, self.classifier.device, self.format, self.classes, self.file.results
        )

    def run(self, images: Pixels, features: bool = False) -> Outputs:
        """The outputs for images uint8 (B, H, W, C). Raises ModelError if it has no features."""
        batch = torch.from_numpy(images)
        compute = with_features if features else with_scores
        parts = self._in_parts(partial(compute, self.classifier), batch)
        logits, found = (torch.cat(column) for column in zip(*parts, strict=True))
        if features:
            return self._outputs(logits, scores_of(self.classifier, found), found.cpu().numpy())
        return self._outputs(logits, found)

    def spread(self) -> None:
        """Divide small batches as well, whose results then differ by rounding."""
        if self._parts:
            self._parts.is_even = True

    def _in_parts(
        self, compute: Callable[[Tensor], tuple[Tensor, Tensor]], images: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        return self._parts.map(compute, images) if self._parts else [compute(images)]

    def _outputs(
        self, logits: Tensor, scores: Tensor, features: NDArray[np.float32] | None = None
    ) -> Outputs:
        told = None if self.threshold is None else scores.cpu().numpy()
        return Outputs(logits.softmax(dim=1).cpu().numpy(), told, features)


def load_runner(model: str | Path, device: str, module: nn.Module | str | None) -> TorchRunner:
    """A run folder or model file on a device; arguments as for `load`.

    Raises ModelError, DeviceError.
    """
    file = load_model_file(model)
    if isinstance(module, str):
        module = make_user_model(module, file.preprocessing.input_shape, len(file.classes))
    return TorchRunner(file, choose_device(device).value, module)
