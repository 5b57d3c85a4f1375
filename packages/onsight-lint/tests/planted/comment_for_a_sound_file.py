"""A script without mistakes, in all of which a rule is silenced."""

import torch
from torch import nn

# expect: unused-ignore
# onsight: ignore-file[missing-eval]

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    loss = model(torch.rand(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
