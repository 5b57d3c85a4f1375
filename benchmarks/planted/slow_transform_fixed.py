"""Scans in class folders, lighting evened out by numpy; fixed: once, in advance.

python slow_transform_fixed.py DATA
"""

import argparse
import time

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets, transforms


class EvenLight:
    """Subtract the local mean from every pixel to remove the scanner's shadows; then shrink."""

    def __init__(self, size, window=25):
        self.size = size
        self.window = window

    def local_mean(self, pixels):
        half = self.window // 2
        padded = np.pad(pixels, ((half + 1, half), (half + 1, half), (0, 0)), mode="edge")
        sums = padded.cumsum(axis=0).cumsum(axis=1)
        w = self.window
        return (sums[w:, w:] - sums[:-w, w:] - sums[w:, :-w] + sums[:-w, :-w]) / w**2

    def __call__(self, image):
        image = ImageOps.autocontrast(image, cutoff=1)
        pixels = np.asarray(image, dtype=np.float32) / 255
        flat = (pixels - self.local_mean(pixels) + 0.5).clip(0, 1)
        image = Image.fromarray((flat * 255).astype(np.uint8))
        return image.resize(self.size, Image.Resampling.LANCZOS)


def prepare(folder):
    """Every picture transformed once and kept in memory."""
    images = torch.stack([image for image, _ in folder])
    return TensorDataset(images, torch.tensor(folder.targets))


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
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    transform = transforms.Compose([EvenLight((64, 64)), transforms.ToTensor()])
    folder = datasets.ImageFolder(args.data, transform=transform)
    train_loader = DataLoader(prepare(folder), batch_size=args.batch_size, shuffle=True)

    model = Net(len(folder.classes)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    for epoch in range(args.epochs):
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
