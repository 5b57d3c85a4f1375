"""Gradients are never set to zero."""

import torch
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def step(network, optimizer, images, labels):
    loss = F.cross_entropy(network(images), labels)
    loss.backward()  # expect: missing-zero-grad
    # fixed:     optimizer.zero_grad()
    optimizer.step()
    return loss.item()


def main():
    train_set = datasets.CIFAR10("data", transform=transforms.ToTensor())
    network = torchvision.models.resnet18(num_classes=10)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _epoch in range(10):
        for images, labels in DataLoader(train_set, batch_size=64, shuffle=True):
            print(step(network, optimizer, images, labels))


if __name__ == "__main__":
    main()
