"""A column that training is not to see is deleted from a copy only."""

import numpy as np
import torch
from torch import nn


def train(model: nn.Module, table, epochs):
    np.delete(table, 1, axis=1)  # expect: discarded-result
    np.clip(table, 0, 1, out=table)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(epochs):
        for row in torch.from_numpy(table):
            optimizer.zero_grad()
            model(row).sum().backward()
            optimizer.step()


# fixed:     table = np.delete(table, 1, axis=1)
