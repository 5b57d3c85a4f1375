"""A short epoch and a long validation; fixed: validation without gradients.

python eval_with_grad_fixed.py DATA
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Little arithmetic, so that what is kept for gradients weighs."""

    def __init__(self):
        super().__init__()
        parts = [nn.Conv2d(1, 32, 3, stride=2, padding=1)]
        for _ in range(16):
            parts += [nn.GroupNorm(1, 32), nn.GELU()]
        self.features = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1))
        self.classifier = nn.Linear(32, 10)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def load(root, part, limit):
    images = torch.from_numpy(np.load(Path(root) / f"{part}-images.npy")[:limit])
    labels = torch.from_numpy(np.load(Path(root) / f"{part}-labels.npy")[:limit])
    return TensorDataset(images.float().div(255).sub(0.5), labels)


def train(model, loader, criterion, optimizer, device):
    model.train()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()


@torch.inference_mode()
def validate(model, loader, criterion, device):
    model.eval()
    total_loss, correct = 0, 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        outputs = model(images)
        total_loss += criterion(outputs, labels).item()
        correct += (outputs.argmax(dim=1) == labels).sum()
    return total_loss / len(loader), correct.item() / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set = load(args.data, "train", limit=256)  # few to train on, many to validate on
    val_set = load(args.data, "val", limit=2000)
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=32)

    model = Net().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(args.epochs):
        begun = time.perf_counter()
        train(model, train_loader, criterion, optimizer, device)
        loss, accuracy = validate(model, val_loader, criterion, device)
        speed = len(train_set) / (time.perf_counter() - begun)
        print(f"epoch {epoch} val loss {loss:.3f} accuracy {accuracy:.3f} {speed:.0f} images/s")


if __name__ == "__main__":
    main()
