"""A running loss that holds on to every graph."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train_one_epoch(model, loader, criterion, optimizer):
    model.train()
    total_loss = 0.0
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(DEVICE), labels.to(DEVICE)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total_loss += loss  # expect: graph-kept
        if step % 100 == 0:
            print(f"step {step}: {loss.item():.3f}")
    return total_loss / len(loader)


def main():
    data = datasets.SVHN("data", transform=transforms.ToTensor(), download=True)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 10))
    net = net.to(DEVICE)
    optimizer = optim.SGD(net.parameters(), lr=0.05)
    for _ in range(3):
        loader = DataLoader(data, batch_size=128, shuffle=True)
        train_one_epoch(net, loader, nn.CrossEntropyLoss(), optimizer)


if __name__ == "__main__":
    main()

# fixed:         total_loss += loss.detach()
