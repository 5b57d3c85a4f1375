"""A penalty that is added to the loss, but the sum is kept nowhere."""

from torch import nn


def step(model: nn.Module, optimizer, images, labels):
    penalty = 0.0
    for weight in model.parameters():
        penalty + weight.abs().sum()  # expect: discarded-result
    loss = nn.functional.cross_entropy(model(images), labels) + 1e-4 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# fixed:         penalty = penalty + weight.abs().sum()
