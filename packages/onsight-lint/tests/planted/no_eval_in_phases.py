"""Training and validation in turns; the mode is never set."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


def train_model(model, dataloaders, criterion, optimizer, num_epochs=25):
    for _epoch in range(num_epochs):
        for phase in ["train", "val"]:
            running_corrects = 0
            for inputs, labels in dataloaders[phase]:  # expect: missing-eval
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_corrects += torch.sum(outputs.argmax(1) == labels).item()
            print(phase, running_corrects / len(dataloaders[phase].dataset))
    return model


if __name__ == "__main__":
    sets = {x: datasets.ImageFolder(f"data/{x}", transforms.ToTensor()) for x in ["train", "val"]}
    loaders = {x: DataLoader(sets[x], batch_size=4, shuffle=True) for x in ["train", "val"]}
    model_ft = models.resnet18(weights="IMAGENET1K_V1")
    model_ft.fc = nn.Linear(model_ft.fc.in_features, 2)
    train_model(model_ft, loaders, nn.CrossEntropyLoss(), optim.SGD(model_ft.parameters(), lr=0.1))
