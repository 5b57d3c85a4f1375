"""Float pictures for a GPU; planted fault: the GPU waits for large copies from pageable memory.

python pageable_copies.py DATA
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Net(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 7, stride=4, padding=3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.classifier = nn.Linear(64 * 4, num_classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class Batches(Dataset):
    """Whole batches, cut from one array, so that loading them takes next to no time."""

    def __init__(self, root, part, batch_size):
        images = torch.from_numpy(np.load(Path(root) / f"{part}-images.npy"))
        labels = torch.from_numpy(np.load(Path(root) / f"{part}-labels.npy"))
        self.images = images.float().div(255).sub(0.5).split(batch_size)
        self.labels = labels.split(batch_size)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=250)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set = Batches(args.data, "train", args.batch_size)
    train_loader = DataLoader(train_set, batch_size=None, shuffle=True)

    model = Net().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        model.train()
        begun, seen = time.perf_counter(), 0
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            seen += len(labels)
        speed = seen / (time.perf_counter() - begun)
        print(f"epoch {epoch} loss {loss.item():.3f} {speed:.0f} images/s")


if __name__ == "__main__":
    main()
