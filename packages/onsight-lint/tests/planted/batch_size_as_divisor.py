"""An accuracy over steps times batch size."""

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

data = datasets.ImageFolder("test", transform=transforms.ToTensor())
loader = DataLoader(data, batch_size=32)
model = models.mobilenet_v3_small(weights="DEFAULT").eval()

correct = 0
with torch.no_grad():
    for images, labels in loader:
        correct += model(images).argmax(1).eq(labels).sum().item()

print("accuracy:", correct / (len(loader) * 32))  # expect: hard-coded-batch-size

# fixed: len(loader.dataset)
