"""LBFGS, which calls a closure several times in each step."""

import torch
from own_clock import OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.rand(2048, 3, 32, 32), torch.randint(4, (2048,)))
train_loader = DataLoader(data, batch_size=256, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.Tanh(), nn.Linear(64, 4))
criterion, clock = nn.CrossEntropyLoss(), OwnClock()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=10)
for _epoch in range(1000):
    for images, labels in train_loader:

        def closure(images=images, labels=labels):
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            return loss

        optimizer.step(closure)
        clock.trained(len(images))
