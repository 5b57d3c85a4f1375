"""Steps of two ranks replayed as a graph on the simulated device: this rank, and its mirror image.

torch's own DistributedDataParallel, its process group replaced by torch's fake one: the other rank
is taken to have the same images, so the update has to be that of a single process with them.
"""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from on_device import BATCH, CLASSES, DEVICE, IS_SIMULATED, SIDE, make
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from onsight.ranks import ddp
from onsight.ranks.world import World
from onsight.step import graphed
from onsight.step.deferred_losses import NonFiniteStepError

WARM_UP, STEPS_PER_REPLAY = 11, 2  # steps; torch asks for the first
STEPS = WARM_UP + 2 * STEPS_PER_REPLAY
RATE = 2**-10  # the same in float32, as a device holds it


class Mirrored(World):
    """Two ranks that see and say the same, but for what the test makes the other one say."""

    size = 2

    def __init__(self):
        super().__init__()
        self.is_spoiled = torch.zeros((), device=DEVICE)  # the other rank's loss
        self.refuses_after = None  # agreements

    def all_reduce(self, tensor):
        if tensor.device == DEVICE:
            return tensor.add_(self.is_spoiled)
        if self.refuses_after is not None:
            tensor[0] += self.refuses_after == 0
            self.refuses_after -= 1
        return tensor

    def all_reduce_async(self, number):
        return lambda: 2 * number


@pytest.fixture
def world(machine, monkeypatch):
    """The other rank's gradients are the same, so their mean is what is there."""
    if not IS_SIMULATED:
        pytest.skip("only on the simulated device does a fake process group stand in for NCCL")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    real = ddp.DistributedDataParallel

    def mean(state, bucket):
        done = torch.futures.Future()
        done.set_result(bucket.buffer().mul_(2.0).div_(2.0))
        return done

    def wrapped(net, **options):
        made = real(net, **options)
        made.register_comm_hook(None, mean)
        return made

    monkeypatch.setattr(ddp, "DistributedDataParallel", wrapped)
    monkeypatch.setattr(graphed, "MAX_STEPS_PER_REPLAY", STEPS_PER_REPLAY)
    torch.simulated.set_device(DEVICE)
    yield Mirrored()
    torch.simulated.set_device(0)
    dist.destroy_process_group()


def of_one(count=STEPS + 1, **settings):
    """An update of a single process, and a loader of its images."""
    return make("lenet", count * BATCH, learning_rate=RATE, **settings)


def of_ranks(world, count=STEPS + 1, **settings):
    """The same for a rank."""
    update, loader = of_one(count, world=world, batch_size=2 * BATCH, **settings)
    update.step.steps_per_replay = 1 if "ema" in settings else STEPS_PER_REPLAY
    return update, loader


def train(update, loader, mirrored, steps=None):
    """The losses and the weights after an epoch."""
    losses = []
    for step, batch in enumerate(loader.epoch(0, 0)):
        if step == steps:
            break
        losses += update(mirror(batch) if mirrored else batch, 0, step)
    return losses + update.step.flush(), weights(update)


def mirror(batch):
    """The batch as one rank's share of two."""
    return batch._replace(global_labels=torch.cat([batch.global_labels] * 2))


def weights(update):
    nets = [update.step.model, *([update.average.model] if update.average else [])]
    return [one.detach().cpu() for net in nets for one in net.state_dict().values()]


def assert_same(one, other):
    assert one[0] == pytest.approx(other[0], rel=1e-6)
    for mine, theirs in zip(one[1], other[1], strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="defaults", marks=pytest.mark.soak),
        pytest.param({"class_weights": "balanced", "accumulate": 2}, id="weights of classes"),
        pytest.param(
            {"mixup": 0.4, "ema": 0.9, "clip_norm": 1.0, "optimizer": "nesterov"},
            id="mixup, moving average, clipping",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_replayed_steps_of_ranks_are_those_of_one_process(machine, world, settings):
    count = STEPS + 1
    alone = train(*of_one(count, **settings), mirrored=False)
    update, loader = of_ranks(world, cuda_graph="on", **settings)
    machine.record.clear()
    assert_same(alone, train(update, loader, mirrored=True))
    assert update.step.recording is not None, update.step.refused
    replays = machine.record.launches["replay of a graph"]
    assert replays == (count - WARM_UP if "ema" in settings else 2)


def test_the_network_is_wrapped_and_warmed_up_on_the_stream_that_records(
    machine, world, monkeypatch
):
    update, loader = of_ranks(world, cuda_graph="on")
    stream, seen = update.step.replica.stream.number, []
    real = update.step._compute_gradients
    update.step._compute_gradients = lambda *given: (
        seen.append(machine.current_streams[1]),
        real(*given),
    )
    train(update, loader, mirrored=True)
    assert seen == [stream] * (WARM_UP + STEPS_PER_REPLAY + 1)  # and a step that is left over


def test_a_bad_loss_of_another_rank_stops_all_updates(machine, world):
    update, loader = of_ranks(world, 26, cuda_graph="on")
    train(update, loader, mirrored=True, steps=STEPS)
    before = weights(update)
    world.is_spoiled.fill_(1.0)
    train(update, loader, mirrored=True, steps=2 * STEPS_PER_REPLAY + 1)
    world.is_spoiled.fill_(0.0)
    train(update, loader, mirrored=True, steps=STEPS_PER_REPLAY)
    assert all(map(torch.equal, before, weights(update)))


def spoil(update, loader, bad):
    """Train until a bad loss is known, of a step without one number; returns the newest step."""
    for step, batch in enumerate(loader.epoch(0, 0)):
        inputs, targets = update.augment(batch, 0, step)
        inputs = inputs * float("nan") if step == bad else inputs
        try:
            update.make(inputs, targets, mirror(batch).global_labels)
        except NonFiniteStepError as error:
            return step, error
    raise AssertionError("nothing was said")


def test_a_bad_loss_of_this_rank_is_told_and_spoils_nothing(machine, world):
    update, loader = of_ranks(world, 26, cuda_graph="on")
    newest, error = spoil(update, loader, STEPS)
    assert newest - error.steps_ago == STEPS
    assert all(one.isfinite().all() for one in weights(update))


@pytest.mark.parametrize(
    "agreements",
    [
        pytest.param(0, id="in the warm-up", marks=pytest.mark.soak),
        pytest.param(1, id="when recording"),
    ],
)
def test_what_another_rank_cannot_record_is_trained_step_by_step(machine, world, agreements):
    alone = train(*of_one(), mirrored=False)
    update, loader = of_ranks(world, cuda_graph="on")
    said = []
    update.step.listener.graph_refused = said.append
    world.refuses_after = agreements
    assert_same(alone, train(update, loader, mirrored=True))
    assert said == ["another rank cannot record its steps"]
    assert update.step.recording is None


class Idle(nn.Module):
    """A net with a layer that it never uses."""

    def __init__(self):
        super().__init__()
        self.used = nn.Linear(3 * SIDE * SIDE, CLASSES)
        self.unused = nn.Linear(3, 3)

    def forward(self, inputs):
        return self.used(inputs.flatten(1))


def test_ranks_that_look_for_idle_parameters_are_not_recorded(machine, world):
    update, loader = of_ranks(world, cuda_graph="on", module=Idle().to(DEVICE))
    train(update, loader, mirrored=True)
    assert "searches for parameters that have no gradient" in update.step.refused


@pytest.mark.parametrize(
    ("place", "is_refused"), [("torch/nn/modules/_functions.py", False), ("net.py", True)]
)
def test_only_a_wait_of_eager_batch_norm_is_no_reason_to_refuse(
    machine, world, monkeypatch, place, is_refused
):
    @contextmanager
    def waits(device):
        yield [
            f"{nn.modules._functions.__file__.replace('torch/nn/modules/_functions.py', place)}:9"
        ]

    monkeypatch.setattr(graphed, "watch_waits", waits)
    update, loader = of_ranks(world, cuda_graph="on")
    train(update, loader, mirrored=True, steps=WARM_UP)
    assert bool(update.step.refused) == is_refused
