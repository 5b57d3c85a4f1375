"""The test loader opens the training images of CIFAR10, which is the default."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

to_tensor = transforms.ToTensor()
train_set = datasets.CIFAR10("data", train=True, transform=to_tensor, download=True)
test_set = datasets.CIFAR10("data", transform=to_tensor)  # expect: evaluates-training-set
# fixed: test_set = datasets.CIFAR10("data", transform=to_tensor, train=False)
train_loader = DataLoader(train_set, batch_size=50, shuffle=True)
test_loader = DataLoader(test_set, batch_size=50)
network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
optimizer = torch.optim.Adam(network.parameters())
for images, labels in train_loader:
    optimizer.zero_grad()
    F.cross_entropy(network(images), labels).backward()
    optimizer.step()
correct = 0
with torch.no_grad():
    for images, labels in test_loader:
        correct += (network(images).argmax(1) == labels).sum().item()
print(correct / len(test_set))
