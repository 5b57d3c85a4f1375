"""A meter that is given the loss with its graph, and adds it up."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class Mean:
    def __init__(self):
        self.total, self.rows = 0.0, 0

    def note(self, value, rows=1):
        self.total += value * rows
        self.rows += rows


def main():
    data = datasets.KMNIST("data", transform=transforms.ToTensor(), download=True)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    optimizer = torch.optim.Adam(net.parameters())
    losses = Mean()
    for images, labels in DataLoader(data, batch_size=100, shuffle=True):
        loss = nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.note(loss, len(labels))  # expect: graph-kept
    print(losses.total / losses.rows)


if __name__ == "__main__":
    main()

# fixed:         losses.note(loss.detach(), len(labels))
