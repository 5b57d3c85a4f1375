"""The list of losses is created before the first epoch and never emptied."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def main():
    pictures = datasets.ImageFolder("pictures", transforms.ToTensor())
    loader = DataLoader(pictures, batch_size=24, shuffle=True)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3072, len(pictures.classes)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses, means = [], []
    for epoch in range(4):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        means.append(np.mean(losses))  # expect: never-reset
        print(epoch, means[-1])


if __name__ == "__main__":
    main()

# fixed:         losses = []
# fixed:         for images, labels in loader:
