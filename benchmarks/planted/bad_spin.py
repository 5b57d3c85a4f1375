"""Few small pictures and a LeNet; planted fault: compute threads sleep at once when they wait.

python bad_spin.py DATA
"""

import argparse
import os
import time
from pathlib import Path

os.environ["GOMP_SPINCOUNT"] = "0"  # "so that waiting threads burn no power"

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

COUNT = 1_500  # pictures


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.relu(self.fc1(x.flatten(1)))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)


def load(root, part):
    images = torch.from_numpy(np.load(Path(root) / f"{part}-images.npy")[:COUNT])
    labels = torch.from_numpy(np.load(Path(root) / f"{part}-labels.npy")[:COUNT])
    return TensorDataset(images.float().div(255).sub(0.5), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_loader = DataLoader(load(args.data, "train"), batch_size=args.batch_size, shuffle=True)

    model = LeNet().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(args.epochs):
        begun, seen, running_loss = time.perf_counter(), 0, 0.0
        for step, (images, labels) in enumerate(train_loader, 1):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()

            seen += len(labels)
            running_loss += loss.detach()
            if step % 20 == 0:
                speed = seen / (time.perf_counter() - begun)
                print(f"[{epoch}, {step:5d}] loss {running_loss / 20:.3f} {speed:.0f} images/s")
                begun, seen, running_loss = time.perf_counter(), 0, 0.0


if __name__ == "__main__":
    main()
