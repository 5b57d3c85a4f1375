"""Oracle: the losses themselves; torch's events for an accelerator are replaced."""

import types

import pytest
import torch

from onsight.ranks.world import World
from onsight.step.deferred_losses import _LAG, DeferredLosses, NonFiniteStepError

CPU, GPU = torch.device("cpu"), torch.device("cuda:1")


@pytest.fixture
def events(monkeypatch):
    """What happens to an accelerator's events, in order."""
    happened = []

    class Event:
        def __init__(self):
            self.number = len([one for one in happened if one[0] == "record"])
            happened.append(("record", self.number))

        def synchronize(self):
            happened.append(("synchronize", self.number))

    def current_stream(device):
        assert device == GPU  # torch.Event(device) would take the current device's stream
        return types.SimpleNamespace(record_event=Event)

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    return happened


def step(losses, value):
    losses.push(torch.tensor(value))
    return losses.ready()


def test_on_the_cpu_each_loss_is_known_at_once():
    losses = DeferredLosses(CPU, World())
    assert [step(losses, float(number)) for number in range(3)] == [[0.0], [1.0], [2.0]]
    assert losses.flush() == []


def test_an_accelerator_is_waited_for_only_when_the_host_is_some_steps_ahead(events):
    losses = DeferredLosses(GPU, World())
    known = [step(losses, float(number)) for number in range(_LAG + 3)]
    assert known == [[]] * _LAG + [[0.0], [1.0], [2.0]]
    assert [one for one in events if one[0] == "synchronize"] == [
        ("synchronize", number) for number in range(4)
    ]
    assert events.index(("synchronize", 0)) > events.index(("record", _LAG - 1))
    assert losses.flush() == [float(number) for number in range(3, _LAG + 3)]
    assert losses.flush() == []


class Ranks(World):
    """Two ranks with the same losses; `told` says when each sum is begun and waited for."""

    def __init__(self):
        super().__init__()
        self.told = []

    def all_reduce_async(self, number):
        self.told.append(f"begin {number:.0f}")

        def wait():
            self.told.append(f"wait {number:.0f}")
            return 2 * number

        return wait


def test_the_sum_over_ranks_is_begun_a_step_before_it_is_waited_for(events):
    ranks = Ranks()
    losses = DeferredLosses(GPU, ranks)
    for number in range(_LAG):
        assert step(losses, float(number)) == []
    assert ranks.told == ["begin 0"]
    assert step(losses, float(_LAG)) == [0.0]
    assert step(losses, float(_LAG + 1)) == [2.0]
    assert ranks.told == ["begin 0", "wait 0", "begin 1", "wait 1", "begin 2"]
    ranks.told.clear()
    rest = range(2, _LAG + 2)
    assert losses.flush() == [2.0 * number for number in rest]
    assert ranks.told == [
        *(f"begin {number}" for number in rest[1:]),
        *(f"wait {number}" for number in rest),
    ]


def test_on_the_cpu_the_sum_is_under_way_during_the_backward_pass():
    ranks = Ranks()
    losses = DeferredLosses(CPU, ranks)
    losses.push(torch.tensor(3.0))
    assert ranks.told == ["begin 3"]
    assert losses.ready() == [6.0]
    assert ranks.told == ["begin 3", "wait 3"]


def test_a_non_finite_loss_says_how_many_steps_ago_it_was(events):
    losses = DeferredLosses(GPU, World())
    step(losses, float("nan"))
    for number in range(_LAG - 1):
        step(losses, float(number))
    with pytest.raises(NonFiniteStepError, match="nan") as caught:
        step(losses, 1.0)
    assert caught.value.steps_ago == _LAG
    losses = DeferredLosses(GPU, World())
    for value in (1.0, float("inf"), 2.0, 3.0):
        step(losses, value)
    with pytest.raises(NonFiniteStepError) as caught:
        losses.flush()
    assert caught.value.steps_ago == 2
    with pytest.raises(NonFiniteStepError) as caught:
        step(DeferredLosses(CPU, World()), float("nan"))
    assert caught.value.steps_ago == 0


@pytest.mark.parametrize("device", [CPU, GPU])
def test_an_unfinished_step_leaves_nothing_behind(device, events):
    losses = DeferredLosses(device, World())
    first = step(losses, 1.0)
    losses.push(torch.tensor(7.0))
    losses.drop_unfinished()
    losses.drop_unfinished()
    assert first + step(losses, 2.0) + losses.flush() == [1.0, 2.0]
