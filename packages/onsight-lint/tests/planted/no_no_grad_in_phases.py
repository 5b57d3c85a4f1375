"""One function trains and validates; its gradients do not follow the phase."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


def run_epoch(model, loader, criterion, optimizer, is_train):
    model.train(is_train)
    total = 0.0
    for images, labels in loader:
        logits = model(images)  # expect: missing-no-grad
        loss = criterion(logits, labels)
        if is_train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item() * len(labels)
    return total / len(loader.dataset)


if __name__ == "__main__":
    torch.manual_seed(0)
    train_set = datasets.ImageFolder("data/train", transforms.ToTensor())
    val_set = datasets.ImageFolder("data/val", transforms.ToTensor())
    train_loader = DataLoader(train_set, batch_size=4, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=4)
    model = models.resnet18(num_classes=2)
    criterion, optimizer = nn.CrossEntropyLoss(), optim.Adam(model.parameters())
    for _ in range(10):
        train_loss = run_epoch(model, train_loader, criterion, optimizer, is_train=True)
        val_loss = run_epoch(model, val_loader, criterion, optimizer, is_train=False)
        print(train_loss, val_loss)

# fixed:         with torch.set_grad_enabled(is_train):
# fixed:             logits = model(images)
