"""What the tests of several ranks compute, in one process or in each of several.

All of it in float64, so that only the algebra matters: in float32, rounding differs between
processors and grows with each step. Run as a script by torchrun, it computes every case, and the
first rank writes the results.
"""

import json
import sys
import unittest.mock
from functools import partial
from pathlib import Path

import torch
from torch import nn

from onsight.data.augment import Augmentation
from onsight.data.loader import Batch, Loader, Pictures
from onsight.data.normalization import Normalization
from onsight.evaluation.per_image import evaluate_batches
from onsight.models.catalog import make_model
from onsight.training.ranks.ddp import Replica, gather_per_image
from onsight.training.ranks.rank_info import rank_from_env
from onsight.training.ranks.world import join
from onsight.training.step.compiled import Compiled
from onsight.training.step.losses import make_loss
from onsight.training.step.optim import make_optimizer
from onsight.training.step.step import Step

CPU = torch.device("cpu")
SHAPE = (16, 16, 1)
SCALING = Normalization((0.5,), (0.25,))
WEIGHTS = torch.tensor([0.2, 1.0, 3.0, 0.5])
PLAIN = {
    "model": "lenet",
    "optimizer": "sgd",
    "rate": 0.05,
    "count": 311,  # the last batch of an epoch has 11 pictures
    "batch": 30,
    "steps": 24,
    "weights": None,
    "accumulate": 1,
    "augmentation": {"flip": True, "translate": 0.1},
    "compiled": False,  # with two ranks
}
CASES = {
    "plain": PLAIN,
    "mixed": PLAIN | {"augmentation": {"flip": True, "mixup": 0.4, "cutmix": 1.0}},
    "weighted": PLAIN | {"weights": True},
    "in parts": PLAIN | {"weights": True, "accumulate": 3},
    "batch norm": PLAIN | {"model": "compact"},
    "batch norm in parts": PLAIN | {"model": "compact", "steps": 8, "accumulate": 4},
    "fewer pictures than ranks": PLAIN | {"count": 32, "batch": 10, "steps": 8},
    "batch norm, fewer pictures than ranks": PLAIN
    | {"model": "compact", "count": 32, "batch": 10, "steps": 8},
    "compiled": PLAIN | {"compiled": True, "steps": 12},
    "compiled in parts": PLAIN | {"compiled": True, "accumulate": 2, "steps": 4},
    "idle parameters": PLAIN | {"model": "idle", "steps": 10},
}
EVALUATED = (0, 1, 2, 3, 10, 11, 1001)


class Idle(nn.Module):
    """A network with a layer that it never uses."""

    def __init__(self):
        super().__init__()
        self.used = nn.Linear(256, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, images):
        return self.used(images.flatten(1))


def make_pictures(count):
    """Pictures whose class shows in a bright band of rows."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 4
    pixels = torch.randint(0, 100, (count, *SHAPE), dtype=torch.uint8, generator=generator)
    for label in range(4):
        pixels[labels == label, 4 * label : 4 * label + 4] += 100
    return Pictures(pixels.view(count, -1), torch.arange(count), labels, SHAPE)


def augmented(batch, augmentation, epoch):
    """Inputs and targets as float64; mixed in pairs, so that rounding depends on no others."""

    def apply(part):
        numbers = augmentation.draw(1, epoch, part.ids)
        inputs, targets = augmentation.apply(part, numbers, SCALING, 4)
        return inputs.double(), targets.double() if augmentation.mixes else targets

    if not augmentation.mixes or len(batch.ids) < 2:
        return apply(batch)
    pairs = [Batch(*(column[n : n + 2] for column in batch[:4])) for n in range(len(batch.ids) - 1)]
    return tuple(map(torch.cat, zip(*map(apply, pairs), strict=True)))


def compiled(pictures, replica):
    """By torch's own compiler, but for its last part: generating code takes too long for a test."""
    with unittest.mock.patch("torch.compile", partial(torch.compile, backend="aot_eager")):
        return Compiled(replica.parallel, pictures // replica.world.size, False)


def train(case, world):
    """Loss and pictures of each step, and the final weights."""
    facts = CASES[case]
    torch.manual_seed(0)
    net = Idle() if facts["model"] == "idle" else make_model(facts["model"], (1, 16, 16), 4)
    net = net.to(torch.float64, memory_format=torch.channels_last)
    replica = Replica(net, (1, 16, 16), CPU, world) if world.size > 1 else None
    step = Step(
        net,
        make_loss("cross-entropy", 0.0, WEIGHTS if facts["weights"] else None).double(),
        make_optimizer(net, facts["optimizer"], facts["rate"], 0.0, 0.9),
        precision="fp32",
        device=CPU,
        accumulate=facts["accumulate"],
        world=world,
        replica=replica,
        compiled=compiled(facts["batch"], replica)
        if facts["compiled"] and world.size == 2
        else None,
    )
    augmentation = Augmentation.of(**facts["augmentation"])
    ids = torch.arange(facts["count"])
    place = {"rank": world.rank, "ranks": world.size, "with_next": augmentation.mixes}
    loader = Loader(make_pictures(facts["count"]), ids, facts["batch"], CPU, **place)
    losses, seen, epoch = [], [], 0
    before = world.watchdog.syncs if world.size > 1 else 0
    while len(losses) < facts["steps"]:
        for batch in loader.epoch(1, epoch):
            inputs, targets = augmented(batch, augmentation, epoch)
            net.train()
            losses += step(inputs, targets, batch.global_labels)
            own = batch.ids.tolist()[: len(inputs)]
            seen.append(world.gather(f"{case}/{len(losses)}", json.dumps(own)))
        epoch += 1
    pictures = [[i for share in shares for i in json.loads(share)] for shares in seen]
    weights = {name: tensor.flatten().tolist() for name, tensor in net.state_dict().items()}
    syncs = world.watchdog.syncs - before if world.size > 1 else 0
    return {"losses": losses, "pictures": pictures, "weights": weights, "syncs": syncs}


def evaluate(count, world):
    """The per-image results of a fixed network over this many pictures."""
    torch.manual_seed(3)
    net = make_model("lenet", (1, 16, 16), 4).eval()
    ids = torch.arange(1001)[:count]
    loader = Loader(make_pictures(1001), ids, 4, CPU, world.rank, world.size)
    part = evaluate_batches(lambda images: net(SCALING.apply(images)), loader.in_order())
    per_image = gather_per_image(part, ids, world)
    return {name: column.tolist() for name, column in vars(per_image).items()}


def everything(world):
    torch.set_num_threads(1)
    return {
        "size": world.size,
        "trained": {case: train(case, world) for case in CASES},
        "evaluated": {str(count): evaluate(count, world) for count in EVALUATED},
    }


if __name__ == "__main__":
    world = join(rank_from_env(), CPU)
    with world.joined():
        result = everything(world)
        if world.is_main:
            Path(sys.argv[1]).write_text(json.dumps(result))
