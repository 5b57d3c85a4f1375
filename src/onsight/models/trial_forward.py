"""Trial forward passes, which test whether a network suits images, classes and memory format.

B batch, C channels, H height, W width, K classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from onsight.errors import ModelError
from onsight.text import plural


def check_output(net: nn.Module, shape: tuple[int, int, int], classes: int, name: str) -> None:
    """Check that a network maps two black images to logits (2, K).

    Args:
        shape: The shape (C, H, W) of an image.
        name: The name of the network, for error messages.

    Raises:
        ModelError: If it does not.
    """
    channels, height, width = shape
    device = next(net.parameters(), torch.empty(0)).device
    try:
        output = trial_forward(net, torch.zeros(2, *shape, device=device))
    except (Exception, SystemExit) as error:  # a network can raise anything
        raise ModelError(
            f"'{name}' cannot process images of {height}x{width} with "
            f"{plural(channels, 'channel')}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(output, Tensor):
        raise ModelError(
            f"'{name}' returns a {type(output).__name__}; it must return a tensor (B, K)"
        )
    if output.dim() != 2 or len(output) != 2:
        raise ModelError(
            f"'{name}' turns 2 images into a tensor of shape {tuple(output.shape)}; "
            f"it must be (2, {classes})"
        )
    if output.shape[1] != classes:
        raise ModelError(
            f"'{name}' returns {output.shape[1]} numbers per image, "
            f"but the data has {classes} classes"
        )
    if not output.is_floating_point():
        raise ModelError(f"'{name}' returns {output.dtype}; it must return floating-point numbers")
    if output.is_meta:
        raise ModelError(f"'{name}' is on the device meta, where it has no weights")
    state = net.state_dict()
    for key in [*dict(net.named_parameters()), *state]:
        if not isinstance(state.get(key), Tensor):
            raise ModelError(f"'{name}' cannot be saved: its state_dict() has no tensor '{key}'")


def set_memory_format(
    net: nn.Module,
    shape: tuple[int, int, int],
    device: torch.device,
    memory_format: str = "auto",
) -> nn.Module:
    """Move a network to a device, in channels-last format if it supports that.

    Networks that reshape with view(), as in many tutorials, need contiguous images; for these,
    images are converted. The random state is not changed.

    Args:
        shape: The shape (C, H, W) of an image.
        memory_format: "auto" to try channels last unless it starts slowly, "channels_last" to
            require it, or "contiguous".

    Raises:
        ModelError: If channels last is required but not supported.
    """
    channels, height, width = shape
    if memory_format == "auto" and starts_slowly(net, device):
        memory_format = "contiguous"
    if memory_format == "contiguous":
        return _use_contiguous(net.to(device))
    net = net.to(device).to(memory_format=torch.channels_last)
    # The images are permuted like those of Normalization, because torch cannot tell the layouts of
    # images with one channel apart.
    if _passes(net, torch.zeros(2, height, width, channels, device=device).permute(0, 3, 1, 2)):
        return net
    if memory_format == "channels_last":
        raise ModelError(
            "this network reshapes with view(), which needs contiguous images: "
            "drop --memory-format channels_last, or use reshape() or flatten() in the network"
        )
    return _use_contiguous(net.to(memory_format=torch.contiguous_format))


def starts_slowly(net: nn.Module, device: torch.device) -> bool:
    """Return whether the first batch of each size takes seconds if images are channels last.

    On a GPU, cuDNN compiles kernels for depthwise convolutions then: 8 s for a training step of
    EfficientNet-Lite0 on an H100, against 0.5 s for contiguous images (NOTEBOOK.md).
    """
    return device.type == "cuda" and has_depthwise_layers(net)


def has_depthwise_layers(net: nn.Module) -> bool:
    """Return whether a network has convolutions with one input channel for each filter."""
    return any(
        isinstance(module, nn.Conv2d) and 1 < module.groups == module.in_channels
        for module in net.modules()
    )


def trial_forward(net: nn.Module, images: Tensor) -> object:
    """Return a network's output for images (B, C, H, W) in evaluation mode.

    The modes of its modules and the random state are restored.
    """
    with preserving_modes(net), torch.no_grad():
        return net.eval()(images)


def find_narrow_input(net: nn.Module, shape: tuple[int, int, int]) -> str:
    """Find a trainable convolution whose input is narrower than its stride.

    On a CPU, oneDNN 3.13 leaves a part of the bf16 gradient of its weight uninitialized.

    Args:
        shape: The shape (C, H, W) of an image.

    Returns:
        The name of the weight, empty if there is none.
    """
    device = next(net.parameters(), torch.empty(0)).device
    with preserving_modes(net), _NarrowInputs() as narrow:
        net.eval()(torch.zeros(2, *shape, device=device))
    if not narrow.weights:
        return ""
    names = (name for name, weight in net.named_parameters() if weight is narrow.weights[0])
    return next(names, "a computed weight")  # such as a standardized weight


class _NarrowInputs(TorchDispatchMode):
    """Collects the trainable weights of convolutions whose input is narrower than their stride."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights: list[Tensor] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if func is torch.ops.aten.convolution.default:
            inputs, weight, _, stride = args[:4]
            is_narrow = weight.shape[-1] > 1 and inputs.shape[-1] < stride[-1]
            if is_narrow and weight.requires_grad:
                self.weights.append(weight)
        return func(*args, **(kwargs or {}))


@contextmanager
def preserving_modes(net: nn.Module) -> Iterator[None]:
    """Restore the modes of a network's modules and the random state after a block."""
    # Modules are restored one by one, because some may be in evaluation mode on purpose.
    modes = [(module, module.training) for module in net.modules()]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, training in modes:
            module.training = training


def _use_contiguous(net: nn.Module) -> nn.Module:
    net.register_forward_pre_hook(_make_contiguous)
    return net


def _passes(net: nn.Module, images: Tensor) -> bool:
    try:
        trial_forward(net, images)
    except RuntimeError:
        return False
    return True


def _make_contiguous(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (arguments[0].clone(memory_format=torch.contiguous_format), *arguments[1:])
