"""The model file: weights, classes, preprocessing, results and provenance in one safetensors file.

It contains tensors and JSON, but no code, and any damage is detected. A file that names a user's
network does not cause it to be imported. The tensors of a blend are named members/NAME/...

n images, D features.
"""

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.data.fit import ImageFormat
from onsight.errors import ModelError
from onsight.files import similar_names
from onsight.limits import HIDDEN_UNITS
from onsight.models.class_names import read_class_names
from onsight.models.members import (
    MOST_MEMBERS,
    check_member,
    is_member_name,
    member_prefix,
)
from onsight.models.out_of_distribution import NEAREST, OutOfDistributionDetector
from onsight.models.preprocessing import Preprocessing
from onsight.models.unsuitable import exported_error
from onsight.tensorfile import (
    DamagedFile,
    put_under,
    read_tensors,
    take_under,
    write_tensors,
)
from onsight.text import joined, resume_hint

FILE_NAME = "model.safetensors"

_FORMAT = "onsight-model"
_VERSION = 4
_READABLE = (3, 4)  # version 3 has no blends
_SEEN = "onsight.seen"  # stored beside the weights; no parameter has such a name
_BANK = "onsight.out_of_distribution"


@dataclass(frozen=True)
class ModelFile:
    """Everything needed to use a trained classifier, and its origin."""

    model: str  # name of the network
    classes: tuple[str, ...]
    preprocessing: Preprocessing  # conversion of images to the network's input
    results: Mapping[str, Any]  # results of the run, as JSON values
    provenance: dict[str, Any]  # data, settings and versions of the run, as JSON values
    weights: dict[str, Tensor]  # tensors of the network
    # `image_keys` of the images that trained or selected the model, or the weights it started from,
    # int64 (n,). They are excluded from evaluations.
    seen: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    temperature: float = 1.0  # divisor of the network's logits
    hidden_units: int = 0  # units of the hidden layer that was added to the head; 0 for none
    uses_all_layers: bool = False  # whether the head is on intermediate layers too
    # Detector of out-of-distribution images, None if there were too few images for one.
    out_of_distribution: OutOfDistributionDetector | None = None
    # License of the published weights that it was trained from, None if there are none or it is
    # unknown.
    weights_license: str | None = None

    @property
    def format(self) -> ImageFormat:
        """The format that every image is converted to."""
        return self.preprocessing.format

    @property
    def members(self) -> Mapping[str, "ModelFile"]:
        """Only itself, without a name."""
        return {"": self}

    def without_tensors(self) -> "ModelFile":
        """Return the facts alone, for a program whose network has a copy of the tensors."""
        return replace(self, weights={})

    def in_fp32(self) -> "ModelFile":
        """Return the file of a network that computes in fp32."""
        exact = self.preprocessing.model_copy(update={"precision": "fp32"})
        return replace(self, preprocessing=exact)


@dataclass(frozen=True)
class BlendFile:
    """Everything needed to use a blend of trained networks, and its origin."""

    # One to three model files by name, for the same classes and images of the same size. Their own
    # detectors do not count in the blend.
    members: Mapping[str, ModelFile]
    member_weights: Mapping[str, float]  # how much each member counts, by name, with a sum of 1
    feature_member: str  # name of the member whose features `embed`, `similar` and the detector use
    results: Mapping[str, Any]  # results of the run, as JSON values
    provenance: dict[str, Any]  # data, settings and versions of the run, as JSON values
    # `image_keys` of the images that trained or selected any member, int64 (n,).
    seen: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    temperature: float = 1.0  # divisor of the logarithms of the mean probabilities
    # Detector of out-of-distribution images, if any.
    out_of_distribution: OutOfDistributionDetector | None = None

    def __post_init__(self) -> None:
        """Check the members. Raises ValueError."""
        if not 1 <= len(self.members) <= MOST_MEMBERS:
            raise ValueError(f"a blend has 1 to {MOST_MEMBERS} members, not {len(self.members)}")
        for name in self.members:
            if not is_member_name(name):
                raise ValueError(f"a member cannot be named {name!r}")
        if self.feature_member not in self.members:
            raise ValueError(f"the feature member {self.feature_member!r} is not a member")
        if self.member_weights.keys() != self.members.keys():
            raise ValueError("there must be one weight for each member")
        weights = self.member_weights.values()
        if not (all(weight > 0 for weight in weights) and math.isclose(sum(weights), 1)):
            raise ValueError("the members' weights must be above 0 and sum to 1")
        first, *others = self.members.values()
        for other in others:
            if other.classes != first.classes:
                raise ValueError("the members have different classes")
            if _packed_format(other) != _packed_format(first):
                raise ValueError("the members take images of different formats")

    @property
    def model(self) -> str:
        """What the blend is, in place of the name of a network."""
        return f"blend of {joined([file.model for file in self.members.values()])}"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return next(iter(self.members.values())).classes

    @property
    def preprocessing(self) -> Preprocessing:
        """That of the member with the largest input; others have another size, mean and std."""
        return max((file.preprocessing for file in self.members.values()), key=_input_pixels)

    @property
    def format(self) -> ImageFormat:
        """The format that every image is converted to."""
        return self.preprocessing.format

    def without_tensors(self) -> "BlendFile":
        """Return the facts alone, for a program whose networks have copies of the tensors."""
        files = {name: file.without_tensors() for name, file in self.members.items()}
        return replace(self, members=files)

    def in_fp32(self) -> "BlendFile":
        """Return the file of a blend whose networks compute in fp32."""
        files = {name: file.in_fp32() for name, file in self.members.items()}
        return replace(self, members=files)


def image_keys(digests: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the first 8 bytes of image digests, uint8 (n, 16), as numbers, int64 (n,)."""
    return np.ascontiguousarray(digests[:, :8]).view(">i8")[:, 0].astype(np.int64)


def save_model(path: Path, file: ModelFile | BlendFile, weights_only: bool = False) -> None:
    """Write a model file atomically.

    Args:
        weights_only: Store only the tensors of the network, for programs that load every tensor
            into it. The out-of-distribution detector is left out.

    Raises:
        DiskError: If the file cannot be written.
    """
    if isinstance(file, BlendFile):
        own_facts, tensors = _blend_parts(file)
    else:
        own_facts, tensors = _network_facts(file), dict(file.weights)
    facts = {
        "format": _FORMAT,
        "version": _VERSION,
        **own_facts,
        "classes": list(file.classes),
        "temperature": file.temperature,
        "results": file.results,
        "provenance": file.provenance,
    }
    seen = np.sort(file.seen)
    if weights_only:
        facts["seen"] = base64.b64encode(seen.astype("<i8").tobytes()).decode()
    else:
        tensors[_SEEN] = torch.from_numpy(seen)
    if file.out_of_distribution and not weights_only:
        detector = dict(vars(file.out_of_distribution))
        tensors[_BANK] = detector.pop("bank")
        facts["out_of_distribution"] = detector
    write_tensors(path, tensors, facts)


def load_model_file(path: str | Path, member: str = "") -> ModelFile | BlendFile:
    """Read a model file, or the model file in a run folder, without running code from it.

    Args:
        member: The name of a member of a blend, to use it alone, with its own temperature. It has
            a detector only if it is the feature member.

    Raises:
        ModelError: If there is none, or it cannot be used.
    """
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
        if not path.exists():
            is_stopped = (path.parent / "config.toml").exists()
            hint = f"; {resume_hint(path.parent)}" if is_stopped else ""
            raise ModelError(
                f"{path.parent} has no {FILE_NAME}: it is not the folder of a finished run{hint}"
            )
    elif not path.exists():
        raise ModelError(f"{path} does not exist.{similar_names(path)}")
    if path.suffix.lower() == ".onnx":
        raise exported_error("reading its network or model file")
    try:
        tensors, facts = read_tensors(path)
    except DamagedFile as error:
        raise ModelError(str(error)) from error
    _check_version(path, facts)
    try:
        file = _read_blend(tensors, facts) if "members" in facts else _read_model(tensors, facts)
    except (KeyError, TypeError, ValueError, ModelError) as error:
        raise ModelError(f"{path} is not a complete Onsight model file: {error}") from error
    if not member:
        return file
    check_member(member, file.members if isinstance(file, BlendFile) else (), path)
    return file.members[member]


def find_model_file(path: str | Path) -> ModelFile | BlendFile | None:
    """Return the model file that a path leads to, None if weights from elsewhere are there."""
    try:
        return load_model_file(path)
    except ModelError:  # whoever reads the weights says what is wrong with them
        return None


def _packed_format(file: ModelFile) -> ImageFormat:
    """Return the format of the images that are kept in memory, whatever the network's input is."""
    return file.format.for_input(file.format.decoded_size)


def _input_pixels(preprocessing: Preprocessing) -> int:
    return math.prod(preprocessing.input_shape)


def _network_facts(file: ModelFile) -> dict[str, Any]:
    """Return the facts about one network, which each member of a blend has."""
    return {
        "model": file.model,
        "image": file.preprocessing.facts(),
        "hidden_units": file.hidden_units,
        "uses_all_layers": file.uses_all_layers,
        "weights_license": file.weights_license,
    }


def _blend_parts(file: BlendFile) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the facts and tensors that only the file of a blend has."""
    members: dict[str, dict[str, Any]] = {}
    tensors: dict[str, Tensor] = {}
    for name, member in file.members.items():
        members[name] = {
            **_network_facts(member),
            "temperature": member.temperature,
            "results": member.results,
            "weight": file.member_weights[name],
        }
        tensors |= put_under(member_prefix(name), member.weights)
    return {"members": members, "feature_member": file.feature_member}, tensors


def _read_common(tensors: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that every file has, and remove their tensors."""
    return {
        "results": _check_type(facts["results"], dict),
        "provenance": _check_type(facts["provenance"], dict),
        "seen": _pop_seen(tensors, facts),
        "temperature": _check_temperature(facts.get("temperature", 1.0)),
        "out_of_distribution": _pop_detector(tensors, facts.get("out_of_distribution")),
    }


def _read_network(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the fields about one network, except its tensors."""
    return {
        "model": _check_type(facts["model"], str),
        "preprocessing": Preprocessing.of(_check_type(facts["image"], dict)),
        "hidden_units": _check_units(facts.get("hidden_units", 0)),
        "uses_all_layers": _check_type(facts.get("uses_all_layers", False), bool),
        "weights_license": _check_type(facts.get("weights_license"), str | None),
    }


def _read_model(tensors: dict[str, Tensor], facts: dict[str, Any]) -> ModelFile:
    return ModelFile(
        classes=read_class_names(facts["classes"]),
        **_read_network(facts),
        **_read_common(tensors, facts),
        weights=tensors,
    )


def _read_blend(tensors: dict[str, Tensor], facts: dict[str, Any]) -> BlendFile:
    common, classes = _read_common(tensors, facts), read_class_names(facts["classes"])
    feature_member = _check_type(facts["feature_member"], str)
    members, weights = {}, {}
    for name, known in _check_type(facts["members"], dict).items():
        members[name] = ModelFile(
            classes=classes,
            **_read_network(_check_type(known, dict)),
            results=_check_type(known["results"], dict),
            provenance=common["provenance"],
            weights=take_under(member_prefix(name), tensors),
            seen=common["seen"],
            temperature=_check_temperature(known["temperature"]),
            out_of_distribution=common["out_of_distribution"] if name == feature_member else None,
        )
        weights[name] = _check_type(known["weight"], float)
    if sum(len(member.weights) for member in members.values()) != len(tensors):
        raise ValueError("some tensors belong to none of its members")
    return BlendFile(members, weights, feature_member, **common)


def _check_version(path: Path, facts: Any) -> None:
    if not isinstance(facts, dict) or facts.get("format") != _FORMAT:
        raise ModelError(f"{path} is not an Onsight model file")
    version = facts.get("version")
    if version in (1, 2):
        raise ModelError(
            f"{path} was written by a development version of Onsight before 0.1.0, the last that "
            "can read it: train the model again"
        )
    if version not in _READABLE:
        raise ModelError(
            f"{path} has version {version} of the model file, but this Onsight reads versions "
            f"{' and '.join(map(str, _READABLE))}. Upgrade: pip install -U onsight"
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


def _check_type(value: Any, kind: type[Any] | UnionType) -> Any:
    if not isinstance(value, kind):
        name = getattr(kind, "__name__", str(kind))
        raise TypeError(f"expected a {name}, not {value!r}")
    return value
