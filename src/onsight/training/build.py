"""From words to objects: what a config asks for, made for the pictures and the device at hand."""

from dataclasses import replace

import torch
from torch import nn

from onsight.config import Config
from onsight.data.augment import Augmentation
from onsight.data.dataset import Dataset
from onsight.data.index import TRAIN
from onsight.data.loader import BatchSource, Pictures
from onsight.data.normalization import Normalization, measure
from onsight.data.prefetch import can_prefetch
from onsight.models.catalog import make_model, pretrained_normalization
from onsight.models.freeze import freeze_backbone
from onsight.models.memory_format import set_memory_format
from onsight.models.shape_check import check_output
from onsight.randomness import key
from onsight.training.plan import Plan
from onsight.training.ranks.ddp import Replica
from onsight.training.ranks.world import World
from onsight.training.step.compiled import Compiled
from onsight.training.step.losses import balanced_weights, make_loss
from onsight.training.step.optim import make_optimizer
from onsight.training.step.step import Step


def place_pictures(dataset: Dataset, plan: Plan) -> BatchSource:
    """The pictures where the plan wants them."""
    pictures, device = dataset.pictures, plan["device"].value
    if not isinstance(pictures, Pictures):
        return pictures
    if plan["pictures"].value == "device":
        return pictures.to(device)
    if plan["pictures"].value == "memory":
        return pictures.copied(locked=can_prefetch(device))
    return pictures


def make_normalization(config: Config, pictures: BatchSource, dataset: Dataset) -> Normalization:
    """The input scaling asked for; measured on training pictures where the data decides."""
    return replace(_make_scaling(config, pictures, dataset), size=dataset.input_shape[1:])


def _make_scaling(config: Config, pictures: BatchSource, dataset: Dataset) -> Normalization:
    channels = dataset.input_shape[0]
    if config.normalize == "half":
        return Normalization((0.5,) * channels, (0.5,) * channels)
    if config.normalize == "none":
        return Normalization((0.0,) * channels, (1.0,) * channels)
    wanted = pretrained_normalization(config.model) if config.pretrained else None
    if config.normalize == "auto" and wanted:
        mean, std = wanted
        if channels == 1:
            return Normalization((sum(mean) / 3,), (sum(std) / 3,))
        return Normalization(mean, std)
    kept = pictures if isinstance(pictures, Pictures) else Pictures.of(dataset.pack)
    return measure(kept, dataset.ids(TRAIN))


def make_net(
    config: Config, dataset: Dataset, device: torch.device, module: nn.Module | None = None
) -> nn.Module:
    """The network on its device, its first weights a function of the seed; or the user's own."""
    shape = dataset.input_shape
    torch.manual_seed(key(config.seed) >> 1)
    if module is None:
        module = make_model(config.model, shape, len(dataset.classes), pretrained=config.pretrained)
    else:
        check_output(module, shape, len(dataset.classes), config.model)
    if config.freeze:
        freeze_backbone(module)
    return set_memory_format(module, shape, device, config.memory_format)


def make_step(
    config: Config,
    net: nn.Module,
    dataset: Dataset,
    precision: str,
    device: torch.device,
    world: World | None = None,
) -> Step:
    """The optimisation step with its loss and optimizer."""
    balanced = config.class_weights == "balanced"
    weights = balanced_weights(torch.from_numpy(dataset.counts(TRAIN))) if balanced else None
    loss = make_loss(config.loss, config.label_smoothing, weights).to(device)
    optimizer = make_optimizer(
        net,
        config.optimizer,
        config.learning_rate,
        config.weight_decay,
        config.momentum,
    )
    world = world or World()
    return Step(
        net,
        loss,
        optimizer,
        precision=precision,
        device=device,
        clip_norm=config.clip_norm,
        accumulate=config.accumulate,
        world=world,
        compiled=Compiled(net, device) if config.compile == "on" else None,
        replica=Replica(net, dataset.input_shape, device, world) if world.size > 1 else None,
    )


def make_augmentation(config: Config, dataset: Dataset) -> Augmentation:
    """What is done to batches of training pictures; those that are streamed come cropped."""
    names = set(Augmentation.__dataclass_fields__) - {"input_size"}
    asked = Augmentation(**{name: getattr(config, name) for name in names})
    streamed = config.residency == "stream"
    return replace(
        asked,
        crop_area=1.0 if streamed else asked.crop_area,
        input_size=dataset.input_shape[1:],
    )
