"""What the tests of several ranks compute, in one process or in each of several.

All of it in float64, so that only the algebra matters: in float32, rounding differs between
processors and grows with each step. Run as a script by torchrun, it computes every case, and the
first rank writes the results.
"""

import json
import sys
import unittest.mock
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from onsight.data.augment import Augmentation
from onsight.data.loader import Batch, Images, Loader
from onsight.data.normalization import Normalization
from onsight.errors import ConfigError
from onsight.evaluation.predictions import evaluate_batches
from onsight.models.catalog import make_model
from onsight.ranks.ddp import Replica, gather_per_image
from onsight.ranks.meeting import rank_from_env
from onsight.ranks.world import Ranks, join
from onsight.step import build, graphed
from onsight.step.graphed import GraphedStep
from onsight.step.losses import make_loss
from onsight.step.optim import make_optimizer
from onsight.step.step import Compiled, Step

CPU = torch.device("cpu")
SHAPE = (16, 16, 1)
SCALING = Normalization((0.5,), (0.25,))
WEIGHTS = torch.tensor([0.2, 1.0, 3.0, 0.5])
PLAIN = {
    "model": "lenet",
    "optimizer": "sgd",
    "rate": 0.05,
    "count": 311,  # the last batch of an epoch has 11 images
    "batch": 30,
    "steps": 24,
    "weights": None,
    "accumulate": 1,
    "augmentation": {"flip": True, "translate": 0.1},
    "compiled": 0,  # by as many ranks
    "graph": None,  # of several ranks: what becomes of steps recorded as one
}
EPOCH = PLAIN | {"count": 131, "steps": 5}
CASES = {
    "plain": PLAIN,
    "mixed": EPOCH | {"augmentation": {"flip": True, "mixup": 0.4, "cutmix": 1.0}},
    "weighted": EPOCH | {"weights": True},
    "in parts": EPOCH | {"weights": True, "accumulate": 3},
    "batch norm": EPOCH | {"model": "compact"},
    "batch norm in parts": EPOCH | {"model": "compact", "accumulate": 4},
    "fewer images than ranks": PLAIN | {"count": 32, "batch": 10, "steps": 8},
    "batch norm, fewer images than ranks": PLAIN
    | {"model": "compact", "count": 32, "batch": 10, "steps": 8},
    "compiled": EPOCH | {"compiled": 3},
    "compiled in parts": EPOCH | {"compiled": 2, "accumulate": 2},
    "replayed": PLAIN | {"graph": "replayed", "rate": 2**-4},
    "recording fails on one rank": PLAIN | {"graph": "fails", "rate": 2**-4, "steps": 18},
    "one rank cannot be recorded": PLAIN | {"graph": "draws", "rate": 2**-4, "steps": 14},
    "idle parameters": EPOCH | {"model": "idle"},
}
EVALUATED = (0, 1, 2, 3, 10, 11, 101)


class Idle(nn.Module):
    """A network with a layer that it never uses."""

    def __init__(self):
        super().__init__()
        self.used = nn.Linear(256, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, images):
        return self.used(images.flatten(1))


def make_images(count):
    """Images whose class shows in a bright band of rows."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 4
    pixels = torch.randint(0, 100, (count, *SHAPE), dtype=torch.uint8, generator=generator)
    for label in range(4):
        pixels[labels == label, 4 * label : 4 * label + 4] += 100
    return Images(pixels.view(count, -1), torch.arange(count), labels, SHAPE)


def augmented(batch, augmentation, epoch):
    """Inputs and targets as float64; mixed in pairs, so that rounding depends on no others."""

    def apply(part):
        numbers = augmentation.draw_numbers(1, epoch, part.ids)
        inputs = augmentation.augment_images(part.images, numbers, SCALING)
        inputs, targets = augmentation.mix_batch(inputs, part.labels, numbers, 4)
        return inputs.double(), targets.double() if augmentation.mixes else targets

    if not augmentation.mixes or len(batch.ids) < 2:
        return apply(batch)
    pairs = [Batch(*(column[n : n + 2] for column in batch[:4])) for n in range(len(batch.ids) - 1)]
    return tuple(map(torch.cat, zip(*map(apply, pairs), strict=True)))


def compiled(images, replica):
    """By torch's own compiler, but for its last part: generating code takes too long for a test."""
    with unittest.mock.patch("torch.compile", partial(torch.compile, backend="aot_eager")):
        return Compiled(replica.parallel, images // replica.world.size, False)


class StandIn:
    """A recording whose replay makes the steps, as a CPU has no graphs."""

    def __init__(self, examples, groups, device, record_step, variant, stream):
        self.variant, self.record_step, self.replays = variant, record_step, 0

    def replay(self, batches):
        self.replays += 1
        losses = torch.zeros(len(batches), dtype=torch.float64)
        for batch, loss in zip(batches, losses, strict=True):
            self.record_step(*batch, loss)
        self.record_step.__self__.recorded_loss = None
        return losses

    def reset(self):
        pass


class BreaksOff(StandIn):
    """A recording that fails within the backward pass."""

    def __init__(self, examples, groups, device, record_step, *rest):
        def fails(gradient):
            raise RuntimeError("cannot be recorded")

        weight = groups[0]["params"][0]
        planted = weight.register_hook(fails)
        loss = torch.zeros((), dtype=torch.float64)
        try:
            # What is recorded is not sent.
            with unittest.mock.patch.object(Ranks, "all_reduce", side_effect=lambda sum: sum):
                record_step(*examples[0], loss)
        finally:
            planted.remove()


@contextmanager
def graphs_stand_in(graph, world):
    """What a device with graphs has; of several ranks only the last fails, or draws numbers."""
    if not graph:
        yield
        return
    is_last = world.rank == world.size - 1
    drawn = {"host": graph == "draws" and is_last, "device": False}
    recording = BreaksOff if graph == "fails" and is_last else StandIn
    event = SimpleNamespace(synchronize=lambda: None)
    replaced = partial(unittest.mock.patch.object, graphed)
    with (
        replaced("watch_random_numbers", side_effect=lambda device: nullcontext(drawn)),
        replaced("watch_waits", side_effect=lambda device: nullcontext([])),
        replaced("Recording", recording),
        unittest.mock.patch.object(
            torch.cpu.Stream, "record_event", return_value=event, create=True
        ),
    ):
        yield


def train(case, world):
    """Loss and images of each step, and the final weights."""
    facts = CASES[case]
    torch.manual_seed(0)
    net = Idle() if facts["model"] == "idle" else make_model(facts["model"], (1, 16, 16), 4)
    net = net.to(torch.float64, memory_format=torch.channels_last)
    graph = facts["graph"] if world.size > 1 else None
    replica = Replica(net, (1, 16, 16), CPU, world, bool(graph)) if world.size > 1 else None
    parts = {
        "precision": "fp32",
        "device": CPU,
        "accumulate": facts["accumulate"],
        "world": world,
        "replica": replica,
    }
    if facts["compiled"] == world.size:
        parts["compiled"] = compiled(facts["batch"], replica)
    loss = make_loss("cross-entropy", 0.0, WEIGHTS if facts["weights"] else None).double()
    optimizer = make_optimizer(net, facts["optimizer"], facts["rate"], 0.0, 0.9)
    if graph:
        for group in optimizer.param_groups:
            group["fused"] = True  # as on a GPU: others take no notice of a bad loss
        step = GraphedStep(net, loss, optimizer, images=facts["batch"], steps_per_replay=3, **parts)
    else:
        step = Step(net, loss, optimizer, **parts)
    augmentation = Augmentation.of(**facts["augmentation"])
    ids = torch.arange(facts["count"])
    place = {"rank": world.rank, "ranks": world.size, "with_next": augmentation.mixes}
    loader = Loader(make_images(facts["count"]), ids, facts["batch"], CPU, **place)
    losses, seen, epoch = [], [], 0
    before = world.watchdog.syncs if world.size > 1 else 0
    while len(losses) < facts["steps"]:
        for batch in loader.epoch(1, epoch):
            inputs, targets = augmented(batch, augmentation, epoch)
            net.train()
            with graphs_stand_in(graph, world):
                losses += step(inputs, targets, batch.global_labels)
            own = batch.ids.tolist()[: len(inputs)]
            seen.append(world.gather(f"{case}/{len(losses)}", json.dumps(own)))
        with graphs_stand_in(graph, world):
            losses += step.flush()
        epoch += 1
    images = [[i for share in shares for i in json.loads(share)] for shares in seen]
    weights = {name: tensor.flatten().tolist() for name, tensor in net.state_dict().items()}
    syncs = world.watchdog.syncs - before if world.size > 1 else 0
    said = world.gather(f"{case}/refused", step.refused)
    found = {"losses": losses, "images": images, "weights": weights, "syncs": syncs}
    return found | {
        "refused": said,
        "replays": getattr(step.recording, "replays", 0) if graph else 0,
    }


def evaluate(count, world):
    """The per-image results of a fixed network over this many images."""
    torch.manual_seed(3)
    net = make_model("lenet", (1, 16, 16), 4).eval()
    ids = torch.arange(101)[:count]
    loader = Loader(make_images(101), ids, 4, CPU, world.rank, world.size)
    part = evaluate_batches(lambda images: net(SCALING.apply(images)), loader.in_order())
    columns = vars(gather_per_image(part, ids, world))
    columns["out_of_distribution"] = np.nan_to_num(
        columns["out_of_distribution"], nan=-1.0
    )  # NaN differs from itself
    return {name: column.tolist() for name, column in columns.items()}


def compile_batch_norm(world):
    """Why a network with batch norm cannot be compiled for several ranks; "" for one."""
    if world.size == 1:
        return ""
    replica = Replica(make_model("compact", SHAPE[::-1], 4), SHAPE[::-1], CPU, world, False)
    try:
        build._compile_replica(replica, 30)
    except ConfigError as error:
        return str(error)
    return ""


def everything(world):
    torch.set_num_threads(1)
    return {
        "refused": compile_batch_norm(world),
        "size": world.size,
        "trained": {case: train(case, world) for case in CASES},
        "evaluated": {str(count): evaluate(count, world) for count in EVALUATED},
    }


class Kept:
    """A recording that is still there when the ranks part."""

    is_free = False

    def reset(self):
        self.is_free = True


if __name__ == "__main__":
    world = join(rank_from_env(), CPU)
    kept = Kept()
    world.recordings.add(kept)
    with world.joined():
        result = everything(world)
        if world.is_main:
            Path(f"{sys.argv[1]}.marker").touch()
        world.wait_for_first_rank("marker")
        assert Path(f"{sys.argv[1]}.marker").exists()
        assert not kept.is_free
    if world.is_main:
        Path(sys.argv[1]).write_text(json.dumps(result | {"is_free": kept.is_free}))
