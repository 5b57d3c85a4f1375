"""The same settings for training and evaluation, so that the evaluation misses a few pictures."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def accuracy(model, loader):
    model.eval()
    correct = seen = 0
    with torch.no_grad():
        for images, labels in loader:
            correct += (model(images).argmax(dim=1) == labels).sum().item()
            seen += len(labels)
    return correct / seen


def main():
    data = datasets.SVHN("data", "test", transform=transforms.ToTensor(), download=True)
    loader = DataLoader(
        data,
        batch_size=96,
        drop_last=True,  # expect: eval-drop-last
    )
    print(accuracy(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), loader))


if __name__ == "__main__":
    main()

# fixed: drop_last=False
