"""Validation of a network with batch norm right after each epoch of training."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class Block(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outside)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(3, 32), nn.MaxPool2d(2), Block(32, 64))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.blocks(x).mean(dim=(2, 3)))


def train_one_epoch(model, loader, optimizer):
    model.train()
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model, loader):
    correct = count = 0
    for images, labels in loader:  # expect: missing-eval
        predictions = model(images).argmax(1)
        correct += (predictions == labels).sum().item()
        count += labels.size(0)
    return correct / count


def main():
    to_tensor = transforms.ToTensor()
    train_set = datasets.CIFAR10("data", transform=to_tensor, download=True)
    val_set = datasets.CIFAR10("data", train=False, transform=to_tensor)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        train_one_epoch(model, DataLoader(train_set, 128, shuffle=True), optimizer)
        print(epoch, evaluate(model, DataLoader(val_set, 128)))


if __name__ == "__main__":
    main()

# fixed:     model.eval()
# fixed:     for images, labels in loader:
