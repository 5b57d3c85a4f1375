"""Oracle: the plain loop that every tutorial writes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onsight.errors import ModelError
from onsight.randomness import seed_generators
from onsight.step.deferred_losses import NonFiniteStepError
from onsight.step.losses import make_loss
from onsight.step.optim import make_optimizer
from onsight.step.step import Step, StepListener
from onsight.step.update import MovingAverage

CPU = torch.device("cpu")


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    return net.to(dtype)


def make_batches(count=6, size=8, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 3, 2, 2, generator=generator).to(dtype),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def make_step(model, weights=None, **options):
    optimizer = make_optimizer(model, "sgd", 0.1, 0.0, 0.9)
    loss = make_loss("cross-entropy", 0.0, weights)
    return Step(model, loss, optimizer, precision="fp32", device=CPU, **options)


def test_steps_are_bit_equal_to_a_plain_loop():
    model = make_model()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    step = make_step(model)
    for inputs, labels in make_batches():
        (loss,) = step(inputs, labels)
        optimizer.zero_grad()
        expected = F.cross_entropy(reference(inputs), labels)
        expected.backward()
        optimizer.step()
        assert loss == expected.item()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("parts", [2, 3, 8])
@pytest.mark.parametrize("weights", [None, torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64)])
@pytest.mark.parametrize("soft", [False, True])
def test_accumulated_parts_make_the_update_of_the_whole_batch(parts, weights, soft):
    whole, split = make_model(torch.float64), make_model(torch.float64)
    step, in_parts = make_step(whole, weights), make_step(split, weights, accumulate=parts)
    for inputs, labels in make_batches(dtype=torch.float64):
        targets = F.one_hot(labels, 3).double() * 0.7 + 0.1 if soft else labels
        assert in_parts(inputs, targets) == pytest.approx(step(inputs, targets), rel=1e-12)
    for mine, theirs in zip(split.parameters(), whole.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-12)


def test_gradients_are_clipped_to_the_norm():
    model = make_model()
    step = make_step(model, clip_norm=0.01)
    step(*make_batches(1)[0])
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_scaled_gradients_are_clipped_to_the_norm_of_the_real_ones():
    model = make_model()
    step = make_step(model, clip_norm=0.01)
    step.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    step(*make_batches(1)[0])
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert norm == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_non_finite_loss_changes_nothing(bad, accumulate):
    model = make_model()
    step = make_step(model, accumulate=accumulate)
    step(*make_batches(1)[0])
    before = copy.deepcopy(model.state_dict())
    inputs, labels = make_batches(1)[0]
    inputs[-1, 0, 0, 0] = bad
    with pytest.raises(NonFiniteStepError, match="the loss is"):
        step(inputs, labels)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_an_output_without_gradient_is_refused():
    class Detached(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs.flatten(1)).detach()

    with pytest.raises(ModelError, match="Detached .*training: no trainable parameter"):
        make_step(Detached(12, 3))(*make_batches(1)[0])


def test_memory_that_does_not_hold_one_image_is_an_error():
    class Full(nn.Linear):
        def forward(self, inputs):
            raise torch.OutOfMemoryError("out of memory")

    step = make_step(Full(12, 3))
    with pytest.raises(torch.OutOfMemoryError):
        step(*make_batches(1, size=5)[0])
    assert step.accumulate == 4  # 8 parts of 5 images would hold no less


def test_a_batch_that_is_retried_draws_the_same_random_numbers_as_one_in_parts_from_the_start():
    """Else a run that repeats the decision to split it would drop out other values."""
    full = [True]

    class Small(nn.Linear):
        def forward(self, inputs):
            outputs = super().forward(F.dropout(inputs.flatten(1), 0.5))
            if full[0] and len(inputs) > 4:
                raise torch.OutOfMemoryError("out of memory")
            return outputs

    torch.manual_seed(0)
    model = Small(12, 3)
    retried, split = (make_step(copy.deepcopy(model), accumulate=parts) for parts in (1, 2))
    batch = make_batches(1, size=8)[0]
    for step in (retried, split):
        step.random_key = (1, 2, 3)
        seed_generators(CPU, *step.random_key)
        step(*batch)
    assert retried.accumulate == 2
    assert torch.equal(retried.model.weight, split.model.weight)


def test_refusing_more_parts_leaves_the_step_as_it_was():
    class Small(nn.Linear):
        def forward(self, inputs):
            if len(inputs) > 4:
                raise torch.OutOfMemoryError("out of memory")
            return super().forward(inputs.flatten(1))

    class Refusing(StepListener):
        def out_of_memory(self, parts):
            raise torch.OutOfMemoryError(f"{parts} parts are not wanted")

    step = make_step(Small(12, 3), listener=Refusing())
    with pytest.raises(torch.OutOfMemoryError, match="2 parts are not wanted"):
        step(*make_batches(1, size=8)[0])
    assert step.accumulate == 1
    assert len(step(*make_batches(1, size=4)[0])) == 1


def test_memory_that_runs_out_inside_the_update_is_an_error_and_nothing_is_done_twice():
    model = make_model()
    step = make_step(model)
    updates = []

    def fail(closure=None):
        updates.append(1)
        with torch.no_grad():
            model[1].weight.add_(1)
        raise torch.OutOfMemoryError("out of memory")

    step.optimizer.step = fail
    with pytest.raises(torch.OutOfMemoryError):
        step(*make_batches(1)[0])
    assert len(updates) == 1
    assert step.accumulate == 1


def test_bf16_trains_and_stays_close():
    model = make_model()
    loss = make_loss("cross-entropy", 0.0, None)
    optimizer = make_optimizer(model, "sgd", 0.1, 0.0, 0.9)
    step = Step(model, loss, optimizer, precision="bf16", device=CPU)
    exact = make_step(make_model())
    for inputs, labels in make_batches():
        assert step(inputs, labels) == pytest.approx(exact(inputs, labels), rel=0.02)


def test_moving_average_follows_its_formula():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).double()
    average = MovingAverage(model, 0.99)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for updates in range(30):
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.add_(1)
        average.update(model, updates)
        decay = min(0.99, (1 + updates) / (10 + updates))
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * tensor
            else:
                expected[name] = tensor.clone()
    for name, tensor in average.model.state_dict().items():
        assert torch.allclose(tensor, expected[name], rtol=1e-12, atol=1e-12)
