"""A loop whose mistake was mended, but not the comment that silenced it."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

train_set = datasets.MNIST("data", transform=transforms.ToTensor(), download=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept, numbers = [], []
for images, labels in DataLoader(train_set, batch_size=64, shuffle=True):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.append(loss)  # onsight: ignore[graph-kept] they are looked at in a debugger
    # expect: unused-ignore
    numbers.append(loss.item())  # type: ignore  # onsight: ignore[graph-kept] as above

# fixed:     numbers.append(loss.item())  # type: ignore
