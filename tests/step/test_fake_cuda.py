"""What autocast does on CUDA, on machines without it: fake tensors have dtypes, but no values."""

import types
from collections import Counter

import numpy as np
import pytest
import torch
from augmented import augment
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from onsight import randomness
from onsight.config import make_config
from onsight.data import normalization
from onsight.data.augment import Augmentation
from onsight.data.loader import Images, Loader
from onsight.data.normalization import Normalization
from onsight.models.classifier import Classifier, autocast
from onsight.ranks.world import World
from onsight.step.build import make_net, make_step

CUDA, SIDE, COUNT, BATCH = torch.device("cuda:0"), 32, 64, 16


class Dtypes(TorchDispatchMode):
    """The dtypes of each operation's first floating-point input."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        first = next((one for one in args if isinstance(one, torch.Tensor)), None)
        if first is not None and first.is_floating_point():
            self.seen[func.overloadpacket.__name__, first.dtype] += 1
        return func(*args, **(kwargs or {}))

    def of(self, *names):
        return {dtype for (name, dtype) in self.seen if name.startswith(names)}


@pytest.fixture
def fake(monkeypatch):
    """Tensors on CUDA without values, and a CUDA that seems to be there."""
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    monkeypatch.setattr(torch.nn.Module, "to", to_fake)
    caches = randomness.constant, normalization._repeat_per_pixel
    for cache in caches:
        cache.cache_clear()
    with FakeTensorMode() as mode:
        yield mode
    for cache in caches:  # no fake tensor may stay
        cache.cache_clear()


def to_fake(self, *args, memory_format=None, **kwargs):
    """nn.Module.to, which cannot set a parameter's data to a fake tensor of another device."""
    for module in self.modules():
        for named in (module._parameters, module._buffers):
            for name, one in named.items():
                if one is not None:
                    moved = one.detach().to(*args, **kwargs)
                    if memory_format and moved.ndim == 4:
                        moved = moved.contiguous(memory_format=memory_format)
                    is_parameter = named is module._parameters
                    named[name] = torch.nn.Parameter(moved) if is_parameter else moved
    return self


def make(precision, model="compact"):
    numbers = torch.arange(COUNT)
    pixels = torch.zeros(COUNT, SIDE * SIDE * 3, dtype=torch.uint8)
    images = Images(pixels, numbers, numbers % 3, (SIDE, SIDE, 3))
    dataset = types.SimpleNamespace(
        images=images,
        input_shape=(3, SIDE, SIDE),
        classes=["a", "b", "c"],
        counts=lambda split: np.array([22, 21, 21]),
    )
    config = make_config(
        {"model": model, "learning_rate": 0.1, "precision": precision, "class_weights": "none"}
    )
    net = make_net(config, dataset, CUDA).train()
    return net, make_step(config, net, dataset, CUDA, World()), images.to(CUDA)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.half)])
def test_products_are_in_half_precision_and_the_loss_is_not(fake, precision, dtype):
    net, step, images = make(precision)
    batch = images.gather(torch.arange(BATCH, device=CUDA))
    inputs = Normalization((0.5,) * 3, (0.5,) * 3, (SIDE, SIDE)).apply(batch.images)
    assert inputs.dtype is torch.float32
    with Dtypes() as dtypes, autocast(precision, CUDA):
        loss = step.loss(net(inputs), batch.labels)
    assert dtypes.of("convolution", "addmm") == {dtype}
    assert dtypes.of("nll_loss") == {torch.float32}  # log_softmax reads halves and gives floats
    assert loss.dtype is torch.float32
    assert {one.dtype for one in net.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_logits_are_fp32_whatever_the_precision(fake, precision):
    net, _, images = make(precision)
    classifier = Classifier(net, Normalization((0.5,) * 3, (0.5,) * 3), precision, CUDA)
    logits = classifier(images.gather(torch.arange(BATCH, device=CUDA)).images)
    assert logits.device == CUDA
    assert logits.dtype is torch.float32


def test_every_augmentation_stays_on_cuda(fake):
    _, _, images = make("fp32")
    augmentation = Augmentation.of(
        flip=True, crop_area=0.5, rotate_degrees=5.0, jitter=0.3, cutout=0.2, mixup=0.4, cutmix=1.0
    )
    loader = Loader(images, torch.arange(COUNT), BATCH, CUDA, with_next=True)
    batch = next(loader._rank_batches([torch.arange(BATCH, device=CUDA)], (0, 0)))
    inputs, targets = augment(augmentation, batch, 0, 0, Normalization((0.5,) * 3, (0.5,) * 3), 3)
    assert inputs.shape == (BATCH, 3, SIDE, SIDE)
    assert {inputs.device, targets.device, batch.global_labels.device} == {CUDA}
