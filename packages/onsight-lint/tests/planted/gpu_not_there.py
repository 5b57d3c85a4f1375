"""Training on the CPU if need be, with a clock that needs a GPU."""

import time

import torch
from torch import nn, optim

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(3, 1).to(device)
optimizer = optim.SGD(net.parameters(), lr=0.1)
rows, targets = torch.randn(100, 3), torch.randn(100, 1)
for _ in range(20):
    start = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.mse_loss(net(rows.to(device)), targets.to(device)).backward()
    optimizer.step()
    torch.cuda.synchronize()  # expect: gpu-assumed
    print(time.perf_counter() - start)

# fixed: if torch.cuda.is_available():
