"""A scheduler with an argument of older versions of PyTorch."""

import torch
from torch import nn, optim

net = nn.Linear(3, 1)
optimizer = optim.SGD(net.parameters(), lr=0.1)
# expect: scheduler-arguments
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=5, verbose=True)
rows, targets = torch.randn(100, 3), torch.randn(100, 1)
for _ in range(20):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(rows), targets).backward()
    optimizer.step()
    scheduler.step()

# fixed: StepLR(optimizer, step_size=5)
