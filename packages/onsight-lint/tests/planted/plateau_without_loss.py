"""A scheduler that waits for the loss to stop falling, and is not told the loss."""

import torch
from torch import nn, optim

net = nn.Linear(3, 1)
optimizer = optim.SGD(net.parameters(), lr=0.1)
scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
rows, targets = torch.randn(100, 3), torch.randn(100, 1)
for _ in range(20):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(rows), targets).backward()
    optimizer.step()
    scheduler.step()  # expect: scheduler-arguments

# fixed:     scheduler.step(val_loss)
