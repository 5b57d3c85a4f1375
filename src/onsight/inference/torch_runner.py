"""A model file run by torch, with the forward pass that evaluation shares."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import nn

from onsight.data.pillow_pixels import Pixels
from onsight.evaluation.per_image import evaluation_batch
from onsight.evaluation.results import Results
from onsight.features.feature_pass import with_features
from onsight.hardware.devices import choose_device
from onsight.inference.runner import Outputs
from onsight.models.classifier import Classifier
from onsight.models.file import ModelFile, build_model, load_model_file
from onsight.models.memory_format import set_memory_format
from onsight.models.user import make_user_model
from onsight.report.console import headline
from onsight.words import listed


class TorchRunner:
    """A Runner whose network is torch's, on any device."""

    def __init__(self, file: ModelFile, device: torch.device, module: nn.Module | None) -> None:
        prepared = file.preprocessing
        self.file = file
        self.classes = file.classes
        self.format = prepared.format
        net = set_memory_format(build_model(file, module), prepared.input_shape, device)
        self.classifier = Classifier(
            net, prepared.normalization, prepared.precision, device, file.temperature
        )
        self.at_once = evaluation_batch(device, self.format.shown)

    @property
    def facts(self) -> Mapping[str, object]:
        """The network, its device and input, the classes, and how good it is."""
        size, results = self.format, cast(Results, self.file.results)
        colour = "grey" if size.channels == 1 else "colour"
        facts = {
            "model": self.file.model,
            "device": self.classifier.device,
            "input": f"{size.shown[0]}x{size.shown[1]}, {colour}",
            "classes": listed(self.classes),
        }
        return facts | ({"result": headline(results)} if "images" in results else {})

    def run(self, pictures: Pixels, features: bool = False) -> Outputs:
        """The outputs for pictures uint8 (B, H, W, C). Raises ModelError if it has no features."""
        images = torch.from_numpy(pictures)
        if not features:
            return Outputs(self.classifier(images).softmax(dim=1).cpu().numpy())
        logits, found = with_features(self.classifier, images)
        return Outputs(logits.softmax(dim=1).cpu().numpy(), found.cpu().numpy())


def load_runner(model: str | Path, device: str, module: nn.Module | str | None) -> TorchRunner:
    """A run folder or model file on a device; arguments as for `load`.

    Raises ModelError, DeviceError.
    """
    file = load_model_file(model)
    if isinstance(module, str):
        module = make_user_model(module, file.preprocessing.input_shape, len(file.classes))
    return TorchRunner(file, choose_device(device).value, module)
