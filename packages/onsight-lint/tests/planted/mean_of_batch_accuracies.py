"""The accuracy of a validation set as the mean of its batches' accuracies."""

import numpy as np
import timm
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def accuracy(logits, labels):
    return (logits.argmax(dim=1) == labels).float().mean()


@torch.no_grad()
def validate(model, val_loader, device):
    model.eval()
    accuracies = []
    for images, labels in val_loader:
        logits = model(images.to(device))
        accuracies.append(accuracy(logits, labels.to(device)).item())
    return np.mean(accuracies)  # expect: mean-of-batch-means


if __name__ == "__main__":
    network = timm.create_model("resnet18", pretrained=True, num_classes=37)
    pets = datasets.OxfordIIITPet("data", "test", transform=transforms.ToTensor())
    print(validate(network, DataLoader(pets, 50), "cpu"))
