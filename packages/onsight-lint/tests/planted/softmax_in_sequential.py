"""A head of its own on a pretrained network, softmax at its end."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

EPOCHS = 5


def main():
    data = datasets.ImageFolder("flowers", transforms.Compose([transforms.ToTensor()]))
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2)
    model = models.resnet50(weights="DEFAULT")
    for parameter in model.parameters():
        parameter.requires_grad = False
    model.fc = nn.Sequential(
        nn.Linear(model.fc.in_features, 256),
        nn.ReLU(),
        nn.Linear(256, len(data.classes)),
        nn.Softmax(dim=1),  # expect: softmax-before-cross-entropy
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.Adam(model.fc.parameters())
    for _ in range(EPOCHS):
        for images, labels in loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
