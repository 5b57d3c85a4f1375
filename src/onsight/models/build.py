"""Builds the classifier in a model file, one network or a blend, without running code from it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from onsight.errors import ModelError
from onsight.models.blend import Blend
from onsight.models.catalog import is_user_spec, make_model
from onsight.models.classifier import Classifier, ImageClassifier
from onsight.models.file import BlendFile, ModelFile
from onsight.models.head import (
    add_hidden_layer,
    feature_size,
    find_head,
    use_intermediate_layers,
)
from onsight.models.trial_forward import set_memory_format
from onsight.models.user import make_user_model

_NAMES_SHOWN = 3
# Parameters that a network may create beyond its weights, because it replaces some.
_SPARE_PARAMETERS, _SPARE_FACTOR = 10_000_000, 2


def build_classifier(
    file: ModelFile | BlendFile, device: torch.device, module: nn.Module | str | None = None
) -> ImageClassifier:
    """Build a trained classifier on a device, without changing the random state.

    Args:
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


def build_model(file: ModelFile, module: nn.Module | None = None) -> nn.Module:
    """Build the trained network in evaluation mode, without changing the random state.

    Args:
        module: The user's network to load the weights into, required if the model is named
            package.module:callable.

    Raises:
        ModelError: If the network is required, or the weights do not fit.
    """
    if module is None and is_user_spec(file.model):
        raise ModelError(
            f"the file was trained with your own code, '{file.model}', which is never imported "
            f"because a file names it. If you trust it, pass --module {file.model} "
            "(in Python: module=, the network itself)"
        )
    shape, classes = file.preprocessing.input_shape, len(file.classes)
    with torch.random.fork_rng(devices=[]):
        if module is None:
            with _limiting_parameters(file.weights, file.model):
                module = make_model(file.model, shape, classes)
        if file.uses_all_layers:
            module = use_intermediate_layers(module, shape, classes)
        if file.hidden_units:
            add_hidden_layer(module, file.hidden_units)
    _check_weights(file, module)
    _check_detector(file, module)
    module.load_state_dict(file.weights)
    return module.eval()


@contextmanager
def _limiting_parameters(weights: Mapping[str, Tensor], name: str) -> Iterator[None]:
    """Limit the parameters that are created within a block, so that damaged files waste no memory.

    Args:
        weights: The weights of the file.

    Raises:
        ModelError: As soon as a network has far more parameters than the weights.
    """
    limit = _SPARE_PARAMETERS + _SPARE_FACTOR * sum(tensor.numel() for tensor in weights.values())
    made = 0

    def count(module: nn.Module, parameter_name: str, parameter: nn.Parameter | None) -> None:
        nonlocal made
        made += parameter.numel() if parameter is not None else 0
        if made > limit:
            raise ModelError(f"the weights are not those of '{name}', which is far larger")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


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


def _check_weights(file: ModelFile, module: nn.Module) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    actual = {name: tuple(tensor.shape) for name, tensor in file.weights.items()}
    misfits = [
        _describe_misfit(name, expected.get(name), actual.get(name))
        for name in {**expected, **actual}
        if expected.get(name) != actual.get(name)
    ]
    if misfits:
        more = len(misfits) - _NAMES_SHOWN
        tail = f"; and {more} more" if more > 0 else ""
        raise ModelError(
            f"the weights do not fit '{file.model}': {'; '.join(misfits[:_NAMES_SHOWN])}{tail}"
        )


def _describe_misfit(
    name: str, expected: tuple[int, ...] | None, actual: tuple[int, ...] | None
) -> str:
    if actual is None:
        return f"{name} is missing"
    if expected is None:
        return f"{name} is not part of the network"
    return f"{name} is {actual}, but the network has {expected}"


def _check_detector(file: ModelFile, module: nn.Module) -> None:
    if file.out_of_distribution is None:
        return
    features = file.out_of_distribution.bank.shape[1]
    if features and (find_head(module) is None or feature_size(module) != features):
        raise ModelError(f"'{file.model}' does not have the {features:,} features of its file")
