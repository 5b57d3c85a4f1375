"""Augmented thumbnails in memory; fixed: each batch is augmented as a whole.

python cpu_augmentation_fixed.py DATA
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets, transforms
from torchvision.transforms import v2


def decode(folder):
    """Every picture decoded once, as uint8."""
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
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=50)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    augment = v2.Compose(
        [
            v2.RandomResizedCrop(64, scale=(0.5, 1)),
            v2.RandomHorizontalFlip(),
            v2.RandomAffine(15, translate=(0.1, 0.1)),
            v2.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3),
            v2.GaussianBlur(3),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ]
    )
    folder = datasets.ImageFolder(args.data, transform=transforms.PILToTensor())
    train_loader = DataLoader(decode(folder), batch_size=args.batch_size, shuffle=True)

    model = Net(len(folder.classes)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        model.train()
        begun, seen = time.perf_counter(), 0
        for images, labels in train_loader:
            images, labels = augment(images.to(device)), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            seen += len(labels)
        speed = seen / (time.perf_counter() - begun)
        print(f"epoch {epoch} loss {loss.item():.3f} {speed:.0f} images/s")


if __name__ == "__main__":
    main()
