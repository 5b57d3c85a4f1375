"""What the recorder finds in loops with planted costs and reads."""

import inspect
import math
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.recorder import Recorder
from onsight_explain.tracing.sites import Sites

HERE = Path(__file__).resolve()
ITEM, FORWARD, BACKWARD, STEP, LOOP = 0.002, 0.005, 0.007, 0.003, 0.004  # seconds, planted


class Slow(Dataset):
    def __init__(self, seconds=ITEM, count=64):
        self.seconds, self.count = seconds, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((3,), float(index % 5)), index % 2


class _SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(BACKWARD)
        return gradient


class Net(nn.Module):
    def __init__(self, is_slow=True):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        self.is_slow = is_slow

    def forward(self, x):
        if not self.is_slow:
            return self.layers(x)
        time.sleep(FORWARD)
        return _SlowBackward.apply(self.layers(x))


class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(STEP)
        return super().step(closure)


@pytest.fixture
def recorder():
    made = Recorder(PhaseClock(), Sites(HERE.parent), 1e9, 10**9, 1, lambda recorder: None)
    made.window.warm_up_seconds = 0.0
    made.install()
    yield made
    made.undo()


def quick(recorder, loaders, between=None, epochs=2, criterion=None):
    """An ordinary loop over the first loader; `between` runs after each epoch with the net."""
    torch.manual_seed(0)
    net, criterion = Net(is_slow=False), criterion or nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(epochs):
        for images, labels in loaders():
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
        if between:
            between(net)
    return recorder


def test_planted_costs_are_found_in_their_phases_and_add_up(recorder):
    loader = DataLoader(Slow(), batch_size=4)
    net, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = SlowSGD(net.parameters(), 0.1)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(net(images), labels)
        loss.backward()
        optimizer.step()
        time.sleep(LOOP)
    first, last, _ = recorder.window.interval()
    steps = last.steps - first.steps
    assert steps == 15
    spent = {name: last.phases[name] - first.phases[name] for name in last.phases}
    planted = {
        "data": 4 * ITEM,
        "forward": FORWARD,
        "backward": BACKWARD,
        "optimizer": STEP,
        "other": LOOP,
    }
    for name, seconds in planted.items():
        assert spent[name] >= 0.99 * steps * seconds  # and since they add up, no more than that
    assert math.isclose(sum(spent.values()), last.time - first.time, rel_tol=1e-3)
    assert last.images - first.images == 4 * steps


def test_the_losses_are_those_of_the_loop():
    def loop(told):
        torch.manual_seed(3)
        net, data = Net(is_slow=False), torch.randn(40, 3)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for batch in data.split(4):
            loss = net(batch).square().mean()
            told.append(loss.detach().clone())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    plain = []
    loop(plain)
    recorder = Recorder(PhaseClock(), Sites(HERE.parent), 1e9, 10**9, 1, lambda recorder: None)
    recorder.install()
    loop([])
    recorder.undo()
    assert torch.equal(torch.stack(recorder.updates.losses), torch.stack(plain))


def test_reads_are_counted_at_the_line_of_the_user(recorder):
    net, total = Net(is_slow=False), 0.0
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(5):
        loss = net(torch.ones(4, 3)).sum()
        loss.backward()
        optimizer.step()
        for value in loss.detach().expand(3):
            total += value.item()  # read here
        total += float(loss.detach())
    lines, start = inspect.getsourcelines(test_reads_are_counted_at_the_line_of_the_user)
    marked = start + next(i for i, line in enumerate(lines) if "# read here" in line)
    found = {
        recorder.sites.of(caller)[0].line: count
        for caller, count in recorder.transfers.reads.items()
        if recorder.sites.of(caller)
    }
    assert found == {marked: 15, marked + 1: 5}


def judge(net):
    for images, _ in DataLoader(Slow(0.0), batch_size=16):
        net(images)


def judge_without_graphs(net):
    with torch.no_grad():
        judge(net)


def test_an_evaluation_that_builds_graphs_is_reported_with_its_line(recorder):
    loader = DataLoader(Slow(0.0), batch_size=8)
    quick(recorder, lambda: loader, judge)
    (site,) = recorder.forwards.graphs_kept
    assert site.line == inspect.getsourcelines(judge)[1] + 2
    assert recorder.forwards.graphs_kept[site] in (7, 8)  # a backward may still follow the last one
    assert recorder.forwards.images == 2 * 64
    assert recorder.read_progress().phases["evaluation"] > 0


def test_an_evaluation_without_graphs_is_not_reported(recorder):
    loader = DataLoader(Slow(0.0), batch_size=8)
    quick(recorder, lambda: loader, judge_without_graphs)
    assert not recorder.forwards.graphs_kept
    assert recorder.forwards.evaluated == 2 * 64


def test_a_new_loader_in_each_epoch_is_not_an_evaluation(recorder):
    quick(recorder, lambda: DataLoader(Slow(0.0), batch_size=8), epochs=3)
    assert not recorder.forwards.graphs_kept
    assert recorder.forwards.images == 3 * 64


def test_a_functional_loss_counts_as_forward(recorder):
    def slow(logits, labels):
        return nn.functional.cross_entropy(logits, labels)

    loader = DataLoader(Slow(0.0), batch_size=8)
    before = recorder.read_progress().phases["forward"]
    quick(recorder, lambda: loader, criterion=slow)
    assert recorder.read_progress().phases["forward"] > before


def test_the_second_optimizer_of_a_step_does_not_count_as_a_step(recorder):
    net = Net(is_slow=False)
    two = [torch.optim.SGD(part.parameters(), 0.1) for part in (net.layers[0], net.layers[2])]
    for _ in range(6):
        net(torch.ones(4, 3)).sum().backward()
        for optimizer in two:
            optimizer.step()
    assert recorder.steps == 6


def test_everything_is_restored():
    def watched():
        owners = (nn.Module, torch.Tensor, DataLoader, Optimizer, nn.functional, torch.autograd)
        return [dict(vars(owner)) for owner in (*owners, nn.utils, torch.cuda, torch.accelerator)]

    before = watched()
    recorder = Recorder(PhaseClock(), Sites(HERE.parent), 1.0, 1, 1, lambda recorder: None)
    recorder.install()
    assert watched() != before
    recorder.undo()
    assert watched() == before
    net = Net(is_slow=False)
    net(torch.ones(4, 3)).sum().backward()
    torch.optim.SGD(net.parameters(), 0.1).step()
    assert (recorder.steps, recorder.forwards.images) == (0, 0)


@pytest.mark.parametrize("kind", ["accelerator", "cuda", "xpu", "mps"])
def test_waiting_for_any_accelerator_is_its_own_phase(monkeypatch, kind):
    owner, phases = getattr(torch, kind), []
    made = Recorder(PhaseClock(), Sites(HERE.parent), 1e9, 10**9, 1, lambda recorder: None)
    monkeypatch.setattr(owner, "synchronize", lambda: phases.append(made.clock.phase))
    made.install()
    try:
        owner.synchronize()
    finally:
        made.undo()
    assert phases == ["sync"]
