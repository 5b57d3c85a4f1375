"""Steps replayed as a graph: the eager steps' bits, one launch, and when they are not.

The simulated device records operations and does them again at a replay. What a step would leave on
the host, such as a learning rate, would be replayed as it was, and the losses would be others.
"""

import random
from itertools import islice

import pytest
import torch
from on_device import BATCH, CLASSES, DEVICE, IS_SIMULATED, SIDE, make
from torch import nn

from onsight.step import graphed
from onsight.step.deferred_losses import NonFiniteStepError
from onsight.step.optim import set_learning_rate

WARM_UP, STEPS_PER_REPLAY = 3, 4  # steps; fewer than in use, for the tests to be quick
# Images: two replays after the warm-up, one step left, and a short batch.
COUNT = BATCH * 3 * STEPS_PER_REPLAY + 5

# Launches to augment a chunk of some 8,000 images; and for a replay: itself, and the copies of
# inputs, targets and learning rates to where it reads them and of the losses to the host.
PER_CHUNK, PER_REPLAY = 70, 5

BATCH_NORM = ("compact", "sprint")
COMBINED = {
    "mixes, weights of classes, parts, nesterov": {
        "mixup": 0.4,
        "cutmix": 1.0,
        "class_weights": "balanced",
        "accumulate": 2,
        "optimizer": "nesterov",
        "weight_decay": 0.01,
    }
}
SINGLE = {
    "defaults": {},
    "nothing": {"flip": False, "translate": 0.0},
    "mixes": {"mixup": 0.4, "cutmix": 1.0},
    "moving average, clipping": {"ema": 0.9, "clip_norm": 1.0},
    "parts": {"accumulate": 2},
    "weights of classes": {"class_weights": "balanced", "accumulate": 3},
    "mse": {"loss": "mse"},
    "sgd": {"optimizer": "nesterov", "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.01},
}


@pytest.fixture(autouse=True)
def few_together(monkeypatch):
    monkeypatch.setattr(graphed, "MAX_STEPS_PER_REPLAY", STEPS_PER_REPLAY)


def train(update, loader, epochs=2, steps=None):
    """The losses and the weights after some epochs, each step with a learning rate of its own."""
    losses, done = [], 0
    for epoch in range(epochs):
        for step, batch in enumerate(islice(loader.epoch(0, epoch), steps)):
            set_learning_rate(update.step.optimizer, 1 / 128, 1 / (1 + done % 4))
            losses += update(batch, epoch, step)
            done += 1
        losses += update.step.flush()
    nets = [update.step.model, *([update.average.model] if update.average else [])]
    return losses, [one.cpu() for net in nets for one in net.state_dict().values()]


def both(model, epochs, **settings):
    """The same training, step by step and replayed; the second's update."""
    plain, loader = make(model, COUNT, **settings)
    before = train(plain, loader, epochs)
    graphed, loader = make(model, COUNT, cuda_graph="on", **settings)
    return before, train(graphed, loader, epochs), graphed


def assert_same(one, other):
    assert one[0] == other[0]
    for mine, theirs in zip(one[1], other[1], strict=True):
        assert mine.equal(theirs)


@pytest.fixture
def float32_rates(monkeypatch):
    """Learning rates as a device holds them, in steps made one by one too."""
    from onsight.step import optim

    def set_rate(optimizer, base, factor):
        for group in optimizer.param_groups:
            group["lr"] = float(torch.tensor(base * factor))

    monkeypatch.setattr(optim, "set_learning_rate", set_rate)
    monkeypatch.setitem(globals(), "set_learning_rate", set_rate)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *(("lenet", name) for name in COMBINED),
        ("compact", "moving average, clipping"),
        *(pytest.param("lenet", name, marks=pytest.mark.soak) for name in SINGLE),
        *(pytest.param(model, "defaults", marks=pytest.mark.soak) for model in BATCH_NORM),
    ],
)
def test_replayed_steps_have_the_bits_of_eager_ones(machine, float32_rates, model, name):
    settings = (SINGLE | COMBINED)[name]
    eager, replayed, update = both(model, 2 if name == "defaults" else 1, **settings)
    assert update.step.recording is not None, update.step.refused
    assert update.step.steps_per_replay == (1 if "ema" in settings else STEPS_PER_REPLAY)
    assert_same(eager, replayed)


@pytest.mark.parametrize("model", ["lenet", pytest.param("compact", marks=pytest.mark.soak)])
def test_steps_made_together_are_five_launches_and_no_wait(machine, model):
    update, loader = make(model, BATCH * 4 * STEPS_PER_REPLAY, cuda_graph="on")
    train(update, loader, 1, WARM_UP + STEPS_PER_REPLAY)
    launches = []
    for step, batch in enumerate(loader.epoch(0, 1)):
        machine.record.clear()
        update(batch, 1, step)
        launches.append(machine.record.launches.total())
        waits = [str(one) for one in machine.record.waits if "deferred_losses" not in one.place]
        assert step == 0 or waits == []  # the first of an epoch draws its order
    assert launches[0] <= PER_CHUNK
    replays = launches[STEPS_PER_REPLAY - 1 :: STEPS_PER_REPLAY]
    assert replays == [PER_REPLAY] * 4
    assert sum(launches) == launches[0] + sum(replays)


class Linear(nn.Module):
    """A linear net with something in its forward pass."""

    def __init__(self, also):
        super().__init__()
        self.linear = nn.Linear(3 * SIDE * SIDE, CLASSES)
        self.also = also

    def forward(self, inputs):
        return self.also(self.linear(inputs.flatten(1)))


def train_with(also, **settings):
    torch.manual_seed(0)
    random.seed(0)
    update, loader = make(count=COUNT, module=Linear(also).to(DEVICE), **settings)
    said = []
    update.step.listener.graph_refused = said.append
    return train(update, loader, 1), update, said


@pytest.mark.parametrize(
    ("also", "reason"),
    [
        (lambda logits: logits / max(1.0, logits.detach().abs().max().item()), "wait for the dev"),
        (lambda logits: logits * random.random(), "random numbers"),
        pytest.param(
            lambda logits: logits + torch.ones(3).pin_memory().to(logits.device, non_blocking=True),
            "not permitted when stream is capturing",
            marks=pytest.mark.skipif(not IS_SIMULATED, reason="CUDA may record such a copy"),
        ),
    ],
    ids=["a wait", "random numbers of the host", "a copy from the host"],
)
def test_what_cannot_be_recorded_is_trained_step_by_step(machine, float32_rates, also, reason):
    eager, _, _ = train_with(also)
    replayed, update, said = train_with(also, cuda_graph="on")
    assert len(said) == 1
    assert reason in said[0]
    assert update.step.recording is None
    assert_same(eager, replayed)


def test_dropout_is_replayed_step_by_step_with_the_same_numbers(machine, float32_rates):
    def drop(logits):
        return nn.functional.dropout(logits, 0.5)

    eager, _, _ = train_with(drop)
    replayed, update, _ = train_with(drop, cuda_graph="on")
    assert update.step.steps_per_replay == 1
    assert update.step.recording is not None
    assert_same(eager, replayed)


def run_with_a_bad_batch(update, batches, bad):
    """Train until the loss of one batch, of NaN, is known; returns the last step begun."""
    for step, batch in enumerate(batches):
        inputs, targets = update.augment(batch, 0, step)
        if step == bad:
            inputs = inputs * float("nan")
        try:
            update.make(inputs, targets, batch.global_labels)
        except NonFiniteStepError as error:
            return step, error
    with pytest.raises(NonFiniteStepError) as raised:
        update.step.flush()
    return step, raised.value


@pytest.mark.parametrize("bad", [1, WARM_UP + 1, WARM_UP + STEPS_PER_REPLAY + 2])
def test_a_loss_that_is_not_finite_stops_all_updates_at_once(machine, bad):
    (update, loader), (clean, _) = (make(count=COUNT, cuda_graph="on") for _ in range(2))
    batches = list(loader.epoch(0, 0))
    newest, error = run_with_a_bad_batch(update, batches, bad)
    assert newest - error.steps_ago == bad
    assert update.step.guards_weights
    for step, batch in enumerate(batches[:bad]):
        clean(batch, 0, step)
    clean.step.flush()
    pairs = zip(update.step.model.parameters(), clean.step.model.parameters(), strict=True)
    assert all(mine.detach().cpu().equal(theirs.detach().cpu()) for mine, theirs in pairs)


def test_a_resumed_epoch_goes_on_to_the_same_bits(machine, float32_rates):
    whole, loader = make("compact", COUNT, cuda_graph="on")
    for step, batch in enumerate(loader.epoch(0, 0)):
        whole(batch, 0, step)
        if step == 6:
            whole.step.flush()
            state = whole.step.model.state_dict(), whole.step.optimizer.state_dict()
            kept = [{name: one.clone() for name, one in state[0].items()}, copied(state[1])]
    whole.step.flush()
    rest, loader = make("compact", COUNT, cuda_graph="on")
    rest.step.model.load_state_dict(kept[0])
    rest.step.optimizer.load_state_dict(kept[1])
    for step, batch in enumerate(loader.epoch(0, 0, 7)):
        rest(batch, 0, step + 7)
    rest.step.flush()
    for mine, theirs in zip(
        whole.step.model.state_dict().values(), rest.step.model.state_dict().values(), strict=True
    ):
        assert mine.cpu().equal(theirs.cpu())


def copied(state):
    """An optimizer's state with tensors of its own."""
    entries = {
        number: {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in entry.items()
        }
        for number, entry in state["state"].items()
    }
    return {**state, "state": entries}


def test_memory_that_runs_out_while_recording_leaves_eager_steps(machine, float32_rates):
    count = BATCH * 2 * STEPS_PER_REPLAY
    expected = train(*make("lenet", count), 1)
    failed = 0
    for number in range(5, 190, 45):
        update, loader = make("lenet", count, cuda_graph="on")
        recorded = type(update.step)._record

        def fail(step, number=number, recorded=recorded):
            machine.memories[1].fail_at = machine.memories[1].allocations + number
            recorded(step)
            machine.memories[1].fail_at = None

        update.step._record = fail.__get__(update.step)
        assert_same(expected, train(update, loader, 1))
        failed += "out of memory" in update.step.refused
    assert failed > 2


def test_another_precision_or_more_parts_are_recorded_anew(machine, float32_rates):
    def in_turn(**settings):
        update, loader = make("lenet", COUNT, **settings)
        found = [train(update, loader, 1)]
        update.step.accumulate = 2
        return [*found, train(update, loader, 1)], update

    eager, _ = in_turn()
    replayed, update = in_turn(cuda_graph="on")
    assert update.step.recording.variant == ("fp32", 2)
    for one, other in zip(eager, replayed, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("steps", [1, 3, pytest.param(5, marks=pytest.mark.soak)])
def test_epochs_of_few_steps_are_replayed_too(machine, float32_rates, steps):
    eager = train(*make("lenet", BATCH * steps), 6)
    update, loader = make("lenet", BATCH * steps, cuda_graph="on")
    machine.record.clear()
    assert_same(eager, train(update, loader, 6))
    assert machine.record.launches["replay of a graph"] >= 6 - WARM_UP
