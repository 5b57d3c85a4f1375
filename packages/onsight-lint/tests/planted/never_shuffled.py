"""A folder of pictures, sorted by class, is trained in that order."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def main():
    to_tensor = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    pictures = datasets.ImageFolder("pictures", to_tensor)
    loader = DataLoader(pictures, batch_size=24)  # expect: unshuffled-training
    net = nn.Sequential(nn.Flatten(), nn.Linear(3072, len(pictures.classes)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()


if __name__ == "__main__":
    main()

# fixed:     loader = DataLoader(pictures, batch_size=24, shuffle=True)
