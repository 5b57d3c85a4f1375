"""One transform for all pictures: the test pictures are cropped and mirrored at random, too."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models
from torchvision import transforms as T

SHARED = T.Compose(
    [
        T.RandomResizedCrop(160),  # expect: random-test-images
        T.RandomHorizontalFlip(),
        T.ToTensor(),
    ]
)


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def count_right(model, loader):
    model.eval()
    with torch.inference_mode():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


def main():
    seen = datasets.Flowers102("data", "train", transform=SHARED, download=True)
    unseen = datasets.Flowers102("data", "test", transform=SHARED, download=True)
    model = models.resnet18(num_classes=102)
    train(model, DataLoader(seen, batch_size=32, shuffle=True))
    right = count_right(model, DataLoader(unseen, batch_size=32))
    print(f"{right} of {len(unseen)}")


if __name__ == "__main__":
    main()

# fixed: test_transform = T.Compose([T.Resize(160), T.CenterCrop(160), T.ToTensor()])
