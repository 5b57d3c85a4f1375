"""Predictions beside the dataset's own labels, from a loader that shuffles."""

import torch
from sklearn.metrics import confusion_matrix
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


def main():
    dataset = datasets.ImageFolder("test", transforms.ToTensor())
    test_loader = DataLoader(dataset, batch_size=64, shuffle=True)  # expect: rows-out-of-step
    model = models.resnet18(num_classes=len(dataset.classes))
    model.load_state_dict(torch.load("resnet.pt", map_location="cpu"))
    model.eval()
    predictions = []
    with torch.no_grad():
        for images, _ in test_loader:
            predictions.extend(model(images).argmax(1).tolist())
    print(confusion_matrix(dataset.targets, predictions))


if __name__ == "__main__":
    main()

# fixed: DataLoader(dataset, batch_size=64, shuffle=False)
