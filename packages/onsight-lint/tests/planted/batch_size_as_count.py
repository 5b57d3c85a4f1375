"""Counting test pictures by the batch size."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

BATCH_SIZE = 48


def test(net, loader):
    net.eval()
    correct = total = 0
    with torch.no_grad():
        for images, labels in loader:
            predicted = net(images).argmax(1)
            total += BATCH_SIZE  # expect: hard-coded-batch-size
            correct += (predicted == labels).sum().item()
    return 100 * correct / total


if __name__ == "__main__":
    testset = datasets.CIFAR10("data", train=False, transform=transforms.ToTensor())
    testloader = DataLoader(testset, batch_size=BATCH_SIZE, shuffle=False)
    print(test(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), testloader))

# fixed:             total += len(labels)
