"""Oracle: the losses themselves; an accelerator's events are planted at torch's border."""

import pytest
import torch

from onsight.training.ledger import _LAG, Ledger, NonFiniteStepError
from onsight.training.world import World

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture
def events(monkeypatch):
    """What an accelerator's events go through."""
    happened = []

    class Event:
        def __init__(self, device):
            self.number = len([one for one in happened if one[0] == "record"])
            assert device == GPU

        def record(self):
            happened.append(("record", self.number))

        def synchronize(self):
            happened.append(("synchronize", self.number))

    monkeypatch.setattr(torch, "Event", Event)
    return happened


def step(ledger, value):
    ledger.enter(torch.tensor(value))
    return ledger.read()


def test_on_the_cpu_each_loss_is_known_at_once():
    ledger = Ledger(CPU, World())
    assert [step(ledger, float(number)) for number in range(3)] == [[0.0], [1.0], [2.0]]
    assert ledger.settle() == []


def test_an_accelerator_is_never_waited_for_before_it_is_steps_ahead(events):
    ledger = Ledger(GPU, World())
    known = [step(ledger, float(number)) for number in range(_LAG + 3)]
    assert known == [[]] * _LAG + [[0.0], [1.0], [2.0]]
    assert [one for one in events if one[0] == "synchronize"] == [
        ("synchronize", number) for number in range(3)
    ]
    assert events.index(("synchronize", 0)) > events.index(("record", _LAG))
    assert ledger.settle() == [float(number) for number in range(3, _LAG + 3)]
    assert ledger.settle() == []


def test_a_bad_loss_says_how_long_ago_it_was(events):
    ledger = Ledger(GPU, World())
    step(ledger, float("nan"))
    for number in range(_LAG - 1):
        step(ledger, float(number))
    with pytest.raises(NonFiniteStepError, match="nan") as caught:
        step(ledger, 1.0)
    assert caught.value.steps_ago == _LAG
    ledger = Ledger(GPU, World())
    for value in (1.0, float("inf"), 2.0, 3.0):
        step(ledger, value)
    with pytest.raises(NonFiniteStepError) as caught:
        ledger.settle()
    assert caught.value.steps_ago == 2
    with pytest.raises(NonFiniteStepError) as caught:
        step(Ledger(CPU, World()), float("nan"))
    assert caught.value.steps_ago == 0


@pytest.mark.parametrize("device", [CPU, GPU])
def test_an_unfinished_step_leaves_nothing_behind(device, events):
    ledger = Ledger(device, World())
    first = step(ledger, 1.0)
    ledger.enter(torch.tensor(7.0))
    ledger.forget_unfinished()
    ledger.forget_unfinished()
    assert first + step(ledger, 2.0) + ledger.settle() == [1.0, 2.0]
