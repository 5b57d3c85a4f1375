"""A wide VGG at 96 pixels, pictures in memory; fixed: bfloat16, channels last.

python fp32_bound_fixed.py DATA
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def block(inputs, outputs):
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]


class VGG(nn.Module):
    def __init__(self, num_classes=10, width=48):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            *block(width, 2 * width),
            *block(2 * width, 4 * width),
            *block(4 * width, 4 * width),
        )
        self.classifier = nn.Linear(4 * width * 3 * 3, num_classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def load(root, part):
    images = torch.from_numpy(np.load(Path(root) / f"{part}-images.npy"))
    labels = torch.from_numpy(np.load(Path(root) / f"{part}-labels.npy"))
    return TensorDataset(images, labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_loader = DataLoader(load(args.data, "train"), batch_size=args.batch_size, shuffle=True)

    model = VGG().to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)

    for epoch in range(args.epochs):
        model.train()
        begun, seen = time.perf_counter(), 0
        for step, (images, labels) in enumerate(train_loader, 1):
            images, labels = images.to(device).float() / 255, labels.to(device)
            images = images.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()

            seen += len(labels)
            if step % 5 == 0:
                speed = seen / (time.perf_counter() - begun)
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} {speed:.0f} images/s")


if __name__ == "__main__":
    main()
