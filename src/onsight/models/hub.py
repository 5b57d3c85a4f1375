"""Published weights from the Hugging Face Hub, which timm downloads or finds in its cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from onsight.errors import ModelError
from onsight.models.pretrained import OFFLINE_CHOICE

_HUB_TIMEOUT_SECONDS = 5.0
_NETWORK_LIBRARIES = {"huggingface_hub", "httpx", "httpx2", "httpcore", "requests", "urllib3"}
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")


@contextmanager
def hub_weights(name: str, hub_id: str | None) -> Iterator[None]:
    """Around timm's download of weights: a missing network soon becomes one clear ModelError."""
    # The Hub's client retries each file six times over most of a minute, so ask once first.
    if hub_id and not is_cached(hub_id) and not _is_reachable(hub_id):
        raise ModelError(_no_network(name, "huggingface.co does not answer"))
    try:
        yield
    except Exception as error:
        if not _is_of_network(error):
            raise
        raise ModelError(_no_network(name, f"{type(error).__name__}: {error}")) from error


@contextmanager
def noting_missing() -> Iterator[list[str]]:
    """Collects the names of tensors that a network loaded meanwhile did not find in its weights.

    timm loads without complaint when it adapts weights to other classes, and tells nobody.
    """
    from unittest import mock  # which imports asyncio

    missing: list[str] = []
    load = nn.Module.load_state_dict

    def noting(net: nn.Module, *args: Any, **options: Any) -> Any:
        result = load(net, *args, **options)
        missing.extend(result.missing_keys)
        return result

    with mock.patch.object(nn.Module, "load_state_dict", noting):
        yield missing


def _no_network(name: str, reason: str) -> str:
    return f"cannot get the published weights of '{name}' ({reason}). {OFFLINE_CHOICE}"


def _is_of_network(error: Exception) -> bool:
    """Whether a library failed because of the network, rather than for a reason of its own."""
    # The HTTP client varies between releases, and not every one raises OSError.
    library = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or library in _NETWORK_LIBRARIES


def is_cached(hub_id: str) -> bool:
    """Whether earlier downloads left the weights of a repository on this machine."""
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
