"""The number of right answers is divided by the number of batches."""

import torch
from torch.utils.data import DataLoader


@torch.no_grad()
def accuracy(network, test_set):
    network.eval()
    correct = 0
    loader = DataLoader(test_set, batch_size=100)
    for images, labels in loader:
        predicted = network(images).argmax(dim=1)
        correct += (predicted == labels).sum().item()
    return correct / len(loader)  # expect: mean-of-batch-means
    # fixed:     return correct / len(loader.dataset)


def main():
    network = torch.hub.load("pytorch/vision", "resnet18")
    network.eval()
    print(accuracy(network, torch.load("test.pt")))
