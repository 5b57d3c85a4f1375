"""The model file: weights, classes, preprocessing, results and provenance in one safetensors file.

It contains tensors and JSON, but no code, and any damage is detected. A file that names a user's
network does not cause it to be imported.

n images, D features.
"""

import base64
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from onsight.errors import ModelError
from onsight.limits import HIDDEN_UNITS
from onsight.models.catalog import is_user_spec, make_model
from onsight.models.head import (
    add_hidden_layer,
    feature_size,
    find_head,
    use_intermediate_layers,
)
from onsight.models.out_of_distribution import NEAREST, OutOfDistributionDetector
from onsight.models.preprocessing import Preprocessing
from onsight.tensorfile import DamagedFile, read_tensors, write_tensors

FILE_NAME = "model.safetensors"

_FORMAT = "onsight-model"
_VERSION = 3
_NAMES_SHOWN = 3
_SEEN = "onsight.seen"  # stored beside the weights; no parameter has such a name
_BANK = "onsight.out_of_distribution"
# Parameters that a network may create beyond its weights, because it replaces some.
_SPARE_PARAMETERS, _SPARE_FACTOR = 10_000_000, 2


@dataclass(frozen=True)
class ModelFile:
    """Everything needed to use a trained classifier, and its origin.

    Attributes:
        model: The name of the network.
        classes: The names of the classes.
        preprocessing: The conversion of images to the network's input.
        results: The results of the run, as JSON values.
        provenance: The data, settings and versions of the run, as JSON values.
        weights: The tensors of the network.
        seen: `image_keys` of the images that trained or selected the model, int64 (n,). They are
            excluded from evaluations.
        temperature: The divisor of the network's logits.
        hidden_units: Units of the hidden layer that was added to the head; 0 for none.
        uses_all_layers: Whether the head is on intermediate layers too.
        out_of_distribution: The detector of out-of-distribution images, None if there were too few
            images for one.
    """

    model: str
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    results: Mapping[str, Any]
    provenance: dict[str, Any]
    weights: dict[str, Tensor]
    seen: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    temperature: float = 1.0
    hidden_units: int = 0
    uses_all_layers: bool = False
    out_of_distribution: OutOfDistributionDetector | None = None


def image_keys(digests: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the first 8 bytes of image digests, uint8 (n, 16), as numbers, int64 (n,)."""
    return np.ascontiguousarray(digests[:, :8]).view(">i8")[:, 0].astype(np.int64)


def save_model(path: Path, file: ModelFile, weights_only: bool = False) -> None:
    """Write a model file atomically.

    Args:
        path: The path of the file.
        file: The content.
        weights_only: Store only the tensors of the network, for programs that load every tensor
            into it. The out-of-distribution detector is left out.

    Raises:
        DiskError: If the file cannot be written.
    """
    facts = {
        "format": _FORMAT,
        "version": _VERSION,
        "model": file.model,
        "classes": list(file.classes),
        "image": file.preprocessing.facts(),
        "temperature": file.temperature,
        "hidden_units": file.hidden_units,
        "uses_all_layers": file.uses_all_layers,
        "results": file.results,
        "provenance": file.provenance,
    }
    seen = np.sort(file.seen)
    tensors = dict(file.weights)
    if weights_only:
        facts["seen"] = base64.b64encode(seen.astype("<i8").tobytes()).decode()
    else:
        tensors[_SEEN] = torch.from_numpy(seen)
    if file.out_of_distribution and not weights_only:
        detector = dict(vars(file.out_of_distribution))
        tensors[_BANK] = detector.pop("bank")
        facts["out_of_distribution"] = detector
    write_tensors(path, tensors, facts)


def load_model_file(path: str | Path) -> ModelFile:
    """Read a model file, or the model file in a run folder, without running code from it.

    Raises:
        ModelError: If there is none, or it cannot be used.
    """
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
        if not path.exists():
            raise ModelError(f"{path.parent} has no {FILE_NAME}: it is not a finished run")
    try:
        weights, facts = read_tensors(path)
    except DamagedFile as error:
        raise ModelError(str(error)) from error
    _check_version(path, facts)
    try:
        return ModelFile(
            model=_check_type(facts["model"], str),
            classes=tuple(_check_type(name, str) for name in _check_type(facts["classes"], list)),
            preprocessing=Preprocessing.of(_check_type(facts["image"], dict)),
            results=_check_type(facts["results"], dict),
            provenance=_check_type(facts["provenance"], dict),
            seen=_pop_seen(weights, facts),
            out_of_distribution=_pop_detector(weights, facts.get("out_of_distribution")),
            weights=weights,
            temperature=_check_temperature(facts.get("temperature", 1.0)),
            hidden_units=_check_units(facts.get("hidden_units", 0)),
            uses_all_layers=_check_type(facts.get("uses_all_layers", False), bool),
        )
    except (KeyError, TypeError, ValueError, ModelError) as error:
        raise ModelError(f"{path} is not a complete Onsight model file: {error}") from error


def build_model(file: ModelFile, module: nn.Module | None = None) -> nn.Module:
    """Build the trained network in evaluation mode, without changing the random state.

    Args:
        file: The model file.
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
    if module is None:
        with torch.random.fork_rng(devices=[]), limiting_parameters(file.weights, file.model):
            module = make_model(file.model, file.preprocessing.input_shape, len(file.classes))
    if file.uses_all_layers:
        with torch.random.fork_rng(devices=[]):
            shape, classes = file.preprocessing.input_shape, len(file.classes)
            module = use_intermediate_layers(module, shape, classes)
    if file.hidden_units:
        with torch.random.fork_rng(devices=[]):
            add_hidden_layer(module, file.hidden_units)
    _check_weights(file, module)
    _check_detector(file, module)
    module.load_state_dict(file.weights)
    return module.eval()


@contextmanager
def limiting_parameters(weights: Mapping[str, Tensor], name: str) -> Iterator[None]:
    """Limit the parameters that are created within a block, so that damaged files waste no memory.

    Args:
        weights: The weights of the file.
        name: The name of the network.

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


def _check_version(path: Path, facts: Any) -> None:
    if not isinstance(facts, dict) or facts.get("format") != _FORMAT:
        raise ModelError(f"{path} is not an Onsight model file")
    version = facts.get("version")
    if version in (1, 2):
        raise ModelError(
            f"{path} was written by a development version of Onsight before 0.1.0, the last that "
            "can read it: train the model again"
        )
    if version != _VERSION:
        raise ModelError(
            f"{path} has version {version} of the model file, but this Onsight reads version "
            f"{_VERSION}. Upgrade: pip install -U onsight"
        )


def _pop_seen(tensors: dict[str, Tensor], facts: dict[str, Any]) -> NDArray[np.int64]:
    """Return the keys of the images seen in training, and remove them from the tensors."""
    if "seen" in facts:
        text = base64.b64decode(_check_type(facts["seen"], str), validate=True)
        return np.frombuffer(text, "<i8").astype(np.int64)
    keys = tensors.pop(_SEEN)
    if keys.dtype != torch.int64 or keys.ndim != 1:
        raise TypeError(f"{_SEEN} must be int64 (n,), not {keys.dtype} {tuple(keys.shape)}")
    return keys.numpy()


def _pop_detector(tensors: dict[str, Tensor], facts: Any) -> OutOfDistributionDetector | None:
    """Return the detector that save_model wrote, if any, and remove its bank from the tensors."""
    if facts is None:
        return None
    bank = tensors.pop(_BANK)
    if bank.dtype != torch.float16 or bank.ndim != 2 or len(bank) < NEAREST:
        raise TypeError(f"{_BANK} must be float16 (n, D), not {bank.dtype} {tuple(bank.shape)}")
    threshold, false_alarm_rate, images = (
        _check_type(facts, dict)[name] for name in ("threshold", "false_alarm_rate", "images")
    )
    if not all(
        isinstance(number, int | float) and 0 <= number < math.inf for number in facts.values()
    ):
        raise TypeError(f"the out-of-distribution facts must be numbers of at least 0: {facts!r}")
    return OutOfDistributionDetector(bank, threshold, false_alarm_rate, images)


def _check_temperature(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise TypeError(f"the temperature must be a number above 0, not {value!r}")
    return float(value)


def _check_units(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value <= HIDDEN_UNITS:
        raise TypeError(f"a head has 0 to {HIDDEN_UNITS:,} hidden units, not {value!r}")
    return value


def _check_type(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected a {kind.__name__}, not {value!r}")
    return value


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
