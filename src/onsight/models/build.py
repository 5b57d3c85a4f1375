"""Builds the classifier in a model file: of one network, or a blend."""

import torch
from torch import nn

from onsight.errors import ModelError
from onsight.models.blend import Blend
from onsight.models.classifier import Classifier, ImageClassifier
from onsight.models.file import BlendFile, ModelFile, build_model
from onsight.models.trial_forward import set_memory_format
from onsight.models.user import make_user_model


def build_classifier(
    file: ModelFile | BlendFile, device: torch.device, module: nn.Module | str | None = None
) -> ImageClassifier:
    """Build a trained classifier on a device, without changing the random state.

    Args:
        file: The model file.
        device: The device.
        module: The user's network to load the weights into, or its package.module:callable.
            Required if the file names one.

    Raises:
        ModelError: If the network is required, or the weights do not fit.
    """
    if isinstance(file, ModelFile):
        return _build_network(file, device, module)
    if module is not None:
        raise ModelError(
            "this model is a blend of several networks, and --module is one: choose the member "
            "with --member NAME (in Python: member=)"
        )
    return Blend(
        {name: _build_network(member, device) for name, member in file.members.items()},
        file.member_weights,
        file.feature_member,
        file.temperature,
        file.out_of_distribution,
    )


def _build_network(
    file: ModelFile, device: torch.device, module: nn.Module | str | None = None
) -> Classifier:
    shape = file.preprocessing.input_shape
    if isinstance(module, str):
        module = make_user_model(module, shape, len(file.classes))
    return Classifier(
        set_memory_format(build_model(file, module), shape, device),
        file.preprocessing.normalization,
        file.preprocessing.precision,
        device,
        file.temperature,
        file.out_of_distribution,
    )
