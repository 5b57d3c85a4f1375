"""Steps of a network, with a comment that misspells the rule that it is to silence."""

from torch import nn


def step(model: nn.Module, images, losses):
    loss = model(images).sum()
    loss.backward()
    # expect: unused-ignore
    losses.append(loss)  # onsight: ignore[graph-keptt, graph-kept]
    return losses


# fixed:     losses.append(loss)  # onsight: ignore[graph-kept]
