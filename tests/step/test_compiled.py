"""torch.compile itself is replaced: compiling takes too long for a test."""

import copy

import pytest
import torch
from prepared import make_prepared

from onsight.data.index import TRAIN
from onsight.ranks.world import World
from onsight.step.build import make_step
from onsight.step.losses import make_loss
from onsight.step.optim import make_optimizer
from onsight.step.step import Compiled, Step
from onsight.tune.trial import Trial

CPU = torch.device("cpu")


@pytest.fixture
def compiled(monkeypatch):
    """What ran compiled: images, whether of any shape, and torch's mode."""
    seen = []

    def compile_net(net, *, dynamic, mode):
        def fast(inputs):
            seen.append((len(inputs), dynamic, mode))
            return net(inputs)

        return fast

    monkeypatch.setattr(torch, "compile", compile_net)
    return seen


@pytest.mark.parametrize(("replays", "mode"), [(False, "default"), (True, "reduce-overhead")])
def test_full_batches_use_the_compiled_network_and_a_smaller_one_does_not_even_if_it_is_the_first(
    compiled, replays, mode
):
    net = torch.nn.Linear(3, 2)
    forward = Compiled(net, 8, replays)
    for size in (5, 8, 8, 9, 5, 8):
        inputs = torch.randn(size, 3)
        assert torch.equal(forward.choose(size, 1)(inputs), net(inputs))
    assert compiled == [(8, False, mode)] * 3


@pytest.mark.parametrize("replays", [False, True])
def test_the_parts_of_a_full_batch_are_compiled_without_graphs(compiled, replays):
    forward = Compiled(torch.nn.Linear(3, 2), 8, replays)
    for part in torch.randn(8, 3).tensor_split(3):
        forward.choose(len(part), 3)(part)
    assert compiled == [(3, False, "default")] * 2


def test_a_step_in_parts_trains_as_the_network_itself_and_goes_on_compiled_when_halved(compiled):
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2).double()
    plain, inputs, labels = copy.deepcopy(net), torch.randn(8, 3).double(), torch.arange(8) % 2

    def make(net, **options):
        optimizer = make_optimizer(net, "sgd", 0.1, 0.0, 0.9)
        loss = make_loss("cross-entropy", 0.0, None)
        return Step(net, loss, optimizer, precision="fp32", device=CPU, **options)

    fast, slow = make(net, compiled=Compiled(net, 8, False)), make(plain)
    for parts in (1, 2):
        fast.accumulate = parts
        fast(inputs, labels)
        slow(inputs, labels)
    assert [size for size, _, _ in compiled] == [8, 4, 4]
    assert torch.allclose(net.weight, plain.weight, rtol=1e-12)


def test_a_full_batch_is_that_of_the_config_or_all_images_if_there_are_fewer(bars, compiled):
    fields = {"learning_rate": 0.01, "precision": "fp32", "threads": 1, "compile": "on"}
    for asked in (16, 1000):
        config, data = make_prepared(bars, batch_size=asked, **fields)
        training = int((data.dataset.splits == TRAIN).sum())
        step = make_step(config, data.new_network(config), data.dataset, CPU, World())
        assert step.compiled.images == min(asked, training)


def test_a_trial_of_another_batch_size_compiles_that_size(bars, compiled):
    fields = {"learning_rate": 0.01, "precision": "fp32", "threads": 1, "compile": "on"}
    trial = Trial(*make_prepared(bars, model="linear", batch_size=16, **fields))
    trial.timer(8)(2)
    assert [size for size, _, _ in compiled] == [8, 8]
