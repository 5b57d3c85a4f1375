"""Faults planted in a step, each noticed; and memory that runs out anywhere."""

import re

import pytest
import torch
from on_device import CLASSES, DEVICE, IS_SIMULATED, SIDE, make, steady
from torch import nn

from onsight.data import loader as prefetch_module
from onsight.data.loader import prefetch
from onsight.step import deferred_losses
from onsight.step.deferred_losses import NonFiniteStepError
from onsight_explain.simulated.machine import RaceError


class Planted(nn.Module):
    """A linear net with a fault in its forward pass."""

    def __init__(self, fault):
        super().__init__()
        self.linear = nn.Linear(3 * SIDE * SIDE, CLASSES)
        self.fault = fault
        self.left_behind = torch.ones(CLASSES)  # neither a parameter nor a buffer

    def forward(self, inputs):
        return self.fault(self, self.linear(inputs.flatten(1)))


def masks(net, logits):
    return logits + logits.detach()[logits > 0].sum()


def makes_from_a_list(net, logits):
    return logits + torch.tensor([0.1, 0.2, 0.3], device=logits.device)


def reads_a_number(net, logits):
    return logits / max(1.0, logits.detach().abs().max().item())


def sends_a_tensor(net, logits):
    return logits + torch.ones(3).to(logits.device, non_blocking=True)  # not page-locked


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (masks, "mask"),
        (makes_from_a_list, "not page-locked"),
        (reads_a_number, "_local_scalar_dense"),
        (sends_a_tensor, "not page-locked"),
    ],
)
def test_a_planted_wait_is_named_with_its_line(machine, fault, cause):
    update, loader = make(model="planted:net", module=Planted(fault))
    steady(machine, update, loader, 4)
    line = fault.__code__.co_firstlineno + 1
    found = [one for one in machine.record.waits if "deferred_losses" not in one.place]
    assert found
    assert all(cause in one.cause for one in found)
    assert all(one.place == f"{__file__}:{line}" for one in found)


def test_a_tensor_left_behind_is_an_error_as_on_a_gpu(machine):
    def adds(net, logits):
        return logits + net.left_behind

    update, loader = make(model="planted:net", module=Planted(adds))
    with pytest.raises(RuntimeError, match="same device") as raised:
        steady(machine, update, loader, 1)
    if IS_SIMULATED:
        assert re.search(r"simulated:1 and cpu! .*check_faults.py:\d+", str(raised.value))


def test_indices_may_be_on_the_cpu_and_their_copy_is_a_wait(machine):
    values = torch.arange(4.0).to(DEVICE)
    machine.record.clear()
    assert values[torch.tensor([3, 1])].tolist() == [3.0, 1.0]
    values[torch.tensor([False, True, False, True])] = 7.0
    assert values.tolist() == [0.0, 7.0, 2.0, 7.0]
    if IS_SIMULATED:
        assert sum("indices" in wait.cause for wait in machine.record.waits) == 2
    with pytest.raises(RuntimeError, match="device"):
        torch.arange(4.0)[torch.tensor([3]).to(DEVICE)]
    with pytest.raises(RuntimeError, match="device"):
        values[torch.tensor([3, 1])] = torch.ones(2)


def test_only_tensors_on_the_cpu_can_be_page_locked(machine):
    values = torch.ones(4, device=DEVICE)
    assert not values.is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        values.pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(4, device=DEVICE, pin_memory=True)


def test_a_batch_used_before_its_copy_has_ended_is_a_race(simulated_machine, monkeypatch):
    batches = [(torch.ones(4),), (torch.zeros(4),)]
    sums = [one.sum().item() for (one,) in prefetch(batches, DEVICE)]
    assert sums == [4.0, 0.0]
    monkeypatch.setattr(prefetch_module, "_receive", lambda sent, arrived, computing: sent)
    with pytest.raises(RaceError, match="may not be done with"):
        [one.sum() for (one,) in prefetch(batches, DEVICE)]


def test_memory_freed_while_another_stream_uses_it_is_a_fault(simulated_machine, monkeypatch):
    def receive(sent, arrived, computing):
        computing.wait_event(arrived)
        return sent  # without record_stream

    monkeypatch.setattr(prefetch_module, "_receive", receive)
    for (one,) in prefetch([(torch.ones(4),), (torch.zeros(4),)], DEVICE):
        one.sum()
    del one
    assert any("record_stream is missing" in fault for fault in simulated_machine.record.faults)
    simulated_machine.record.faults.clear()


def test_page_locked_memory_reused_too_early_is_a_fault(simulated_machine):
    buffer = torch.zeros(4).pin_memory()
    for value in (1.0, 2.0):
        buffer.fill_(value)
        sent = buffer.to(DEVICE, non_blocking=True)
    with pytest.raises(AssertionError, match="changed before its copy had ended"):
        simulated_machine.check()
    simulated_machine.record.faults.clear()
    simulated_machine.reset()
    for value in (1.0, 2.0):
        buffer.fill_(value)
        sent = buffer.to(DEVICE, non_blocking=True)
        torch.simulated.current_stream(DEVICE).synchronize()
    assert sent.sum().item() == 8.0


def test_losses_read_behind_an_event_of_the_wrong_device_are_poison(simulated_machine, monkeypatch):
    class OfTheCurrentDevice:
        def current_stream(self, device):
            return torch.simulated.current_stream()  # as torch.Event(device).record() does

    monkeypatch.setattr(deferred_losses, "module_of", lambda device: OfTheCurrentDevice())
    update, loader = make()
    steady(simulated_machine, update, loader, 3)
    with pytest.raises(NonFiniteStepError):
        update.step.flush()


def one_step(device, fail_at=None, machine=None, **settings):
    """Weights after a step, the number of parts, and what it raised."""
    update, loader = make(device=device, **settings)
    batch = next(loader.epoch(0, 0))
    inputs = update.augment(batch, 0, 0)
    if machine:
        machine.memories[DEVICE.index].allocations = 0
        machine.memories[DEVICE.index].fail_at = fail_at
    error = None
    try:
        update.make(*inputs, batch.global_labels)
    except torch.OutOfMemoryError as caught:
        error = caught.with_traceback(None)
    finally:
        if machine:
            machine.memories[DEVICE.index].fail_at = None
    after = [one.detach().cpu() for one in update.step.model.parameters()]
    return after, update.step.accumulate, error


@pytest.mark.parametrize(
    ("model", "every"),  # every how many-th allocation fails, each in a step of its own
    [
        ("linear", 3),
        pytest.param("linear", 1, marks=pytest.mark.soak),
        pytest.param("lenet", 1, marks=pytest.mark.soak),
    ],
)
def test_memory_that_runs_out_anywhere_gives_parts_or_an_error(machine, model, every):
    cpu = torch.device("cpu")
    right = {parts: one_step(cpu, model=model, accumulate=parts)[0] for parts in (1, 2)}
    ends, fail_at = set(), 1 - every
    while True:
        fail_at += every
        after, parts, error = one_step(DEVICE, fail_at, machine, model=model)
        if error:
            ends.add("error")
            assert "out of memory" in str(error)
            continue
        assert all(map(torch.equal, after, right[parts])), f"allocation {fail_at}"
        ends.add(parts)
        if parts == 1:
            break  # the step makes fewer allocations
    assert ends >= {1, 2}
    assert fail_at > 15
