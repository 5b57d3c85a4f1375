"""Makes the network and the training step that a config describes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from onsight.config import Config
from onsight.data.augment import SETTINGS, Augmentation
from onsight.data.dataset import Dataset
from onsight.data.index import TRAIN
from onsight.data.normalization import Normalization
from onsight.errors import ConfigError
from onsight.models.catalog import load_weights, make_model
from onsight.models.head import freeze_backbone, use_intermediate_layers
from onsight.models.trial_forward import (
    check_output,
    find_narrow_input,
    set_memory_format,
)
from onsight.models.weights import LoadedWeights
from onsight.randomness import key
from onsight.ranks.ddp import Replica
from onsight.ranks.world import World
from onsight.step.fine_tuning import fine_tunes
from onsight.step.graphed import GraphedStep, choose_steps_per_replay
from onsight.step.losses import choose_class_weights, class_weights, make_loss
from onsight.step.optim import make_optimizer
from onsight.step.step import Compiled, Step, StepListener
from onsight.step.update import FirstStepCheck, MovingAverage, Update


def make_net(
    config: Config,
    dataset: Dataset,
    device: torch.device,
    module: nn.Module | None = None,
    announce: Callable[[LoadedWeights], object] = lambda loaded: None,
) -> nn.Module:
    """Make a network whose initial weights depend only on the seed; or check the user's own.

    Args:
        dataset: Whose images and classes it is made for.
        device: Where it is put.
        announce: Is called with the weights that the network starts from, if they are not random.
    """
    shape = dataset.input_shape
    torch.manual_seed(key(config.seed) >> 1)
    if module is None:
        module = make_model(
            config.model,
            shape,
            len(dataset.classes),
            pretrained=config.pretrained,
            weights=config.weights,
            member=config.member,
            report=announce,
        )
        if config.freeze and config.loss == "cross-entropy":
            module = use_intermediate_layers(module, shape, len(dataset.classes))
    else:
        check_output(module, shape, len(dataset.classes), config.model)
        if config.weights:
            announce(load_weights(module, config.weights, config.member))
    if config.freeze:
        freeze_backbone(module)
    return set_memory_format(module, shape, device, config.memory_format)


def make_update(
    config: Config,
    net: nn.Module,
    dataset: Dataset,
    normalization: Normalization,
    device: torch.device,
    world: World | None = None,
    listener: StepListener | None = None,
    first_check: FirstStepCheck | None = None,
) -> Update:
    """Make what trains a network: the step, with its augmentation and moving average."""
    return Update(
        config,
        make_step(config, net, dataset, device, world or World(), listener),
        make_augmentation(config, dataset),
        normalization,
        len(dataset.classes),
        MovingAverage(net, config.ema, fine_tunes(config)) if config.ema else None,
        first_check,
    )


def make_step(
    config: Config,
    net: nn.Module,
    dataset: Dataset,
    device: torch.device,
    world: World,
    listener: StepListener | None = None,
) -> Step:
    """Make the optimization step, with its loss and optimizer. Raises ConfigError."""
    if config.precision == "bf16" and device.type == "cpu":
        _check_bf16(net, dataset)
    weights = loss_weights(config, dataset)
    loss = make_loss(config.loss, config.label_smoothing, weights).to(device)
    optimizer = make_optimizer(
        net,
        config.optimizer,
        config.learning_rate,
        config.weight_decay,
        config.momentum,
        config.layer_decay or 1.0,
    )
    graphed = config.cuda_graph == "on"
    replica = None
    if world.size > 1:
        replica = Replica(net, dataset.input_shape, device, world, is_recorded=graphed)
    parts: dict[str, Any] = {
        "precision": config.precision,
        "device": device,
        "clip_norm": config.clip_norm,
        "accumulate": max(1, config.accumulate),
        "world": world,
        "replica": replica,
        "listener": listener,
    }
    if config.compile == "on":
        full_batch = _full_batch_size(config, dataset)
        if replica:
            parts["compiled"] = _compile_replica(replica, full_batch)
        else:
            replays = device.type == "cuda" and not graphed
            parts["compiled"] = Compiled(net, full_batch, replays)
    if graphed:
        full_batch = _full_batch_size(config, dataset)
        steps = len(dataset.ids(TRAIN)) // full_batch
        count = 1 if config.ema else choose_steps_per_replay(steps)
        return GraphedStep(net, loss, optimizer, images=full_batch, steps_per_replay=count, **parts)
    return Step(net, loss, optimizer, **parts)


def _check_bf16(net: nn.Module, dataset: Dataset) -> None:
    name = find_narrow_input(net, dataset.input_shape)
    if name:
        raise ConfigError(
            f"torch computes a wrong bf16 gradient of {name} on a CPU, where the input of the "
            "convolution is narrower than its stride; use --precision fp32 or a larger --image-size"
        )


def _compile_replica(replica: Replica, full_batch: int) -> Compiled:
    """Compile for this rank's share of a full batch."""
    world = replica.world
    if replica.statistics:
        raise ConfigError(
            f"--compile on cannot be combined with --ranks {world.size} on a CPU if the network "
            "has batch norm: torch has none over several ranks there that it can compile; use only "
            "one of these options"
        )
    share = torch.arange(full_batch).tensor_split(world.size)[world.rank]
    return Compiled(replica.parallel, len(share), replays=False)


def _full_batch_size(config: Config, dataset: Dataset) -> int:
    return min(config.batch_size, len(dataset.ids(TRAIN)))


def loss_weights(config: Config, dataset: Dataset) -> Tensor | None:
    """Return the weight of each class in the loss, float32 (K,); None if all are equal."""
    counts = torch.from_numpy(dataset.counts(TRAIN))
    how = choose_class_weights(config.class_weights, counts).value
    return None if how == "none" else class_weights(counts, how)


def make_augmentation(config: Config, dataset: Dataset) -> Augmentation:
    """Make the augmentation of training images; streamed ones are already cropped."""
    settings = config.model_dump(include=SETTINGS) | {"input_size": dataset.input_shape[1:]}
    if config.residency == "stream":
        settings["crop_area"] = 1.0
    return Augmentation.of(**settings)
