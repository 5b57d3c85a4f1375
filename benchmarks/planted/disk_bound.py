"""Raw pictures larger than memory; planted fault: each is read whole from disk in every epoch.

    python disk_bound.py DATA

The data here is small, so each file is dropped from the page cache before it is read: this stands
in for a set that does not fit in memory, whose files are never cached when they are needed.
"""

import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import DatasetFolder


def read_raw(path):
    """The picture (3, 64, 64) of a file of raw colours."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # see above
        pixels = np.load(file)
    height, width, _ = pixels.shape
    small = pixels[:: height // 64, :: width // 64]
    return torch.from_numpy(small.transpose(2, 0, 1).copy())


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
        )
        self.classifier = nn.Linear(32 * 4 * 4, num_classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, default=12)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set = DatasetFolder(args.data, loader=read_raw, extensions=(".npy",))
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)

    model = Net(len(train_set.classes)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    for epoch in range(args.epochs):
        begun, seen = time.perf_counter(), 0
        for images, labels in train_loader:
            images, labels = images.to(device).float() / 255, labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            seen += len(labels)
        speed = seen / (time.perf_counter() - begun)
        print(f"epoch {epoch} loss {loss.item():.3f} {speed:.0f} images/s")


if __name__ == "__main__":
    main()
