"""Evaluation of saved weights, wherever they were trained."""

import argparse

import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def evaluate(model, loader, device):
    model.eval()
    correct = 0
    with torch.inference_mode():
        for images, labels in loader:
            scores = model(images.to(device))
            correct += (scores.argmax(1).cpu() == labels).sum().item()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    device = torch.device(args.device)
    model = torchvision.models.resnet18(num_classes=10)
    checkpoint = torch.load(args.weights, weights_only=True)  # expect: map-location
    model.load_state_dict(checkpoint["model"])
    model.to(device)
    data = datasets.ImageFolder("val", transforms.ToTensor())
    print(f"accuracy {evaluate(model, DataLoader(data, batch_size=64), device):.2%}")


if __name__ == "__main__":
    main()

# fixed: torch.load(args.weights, weights_only=True, map_location=device)
