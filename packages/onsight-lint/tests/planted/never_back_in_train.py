"""A trainer that calls train() once, before the first epoch."""

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms


class Trainer:
    def __init__(self, model, train_loader, val_loader, lr=1e-3):
        self.model = model
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)

    def fit(self, epochs):
        self.model.train()
        for epoch in range(epochs):
            self.train_epoch()
            print(epoch, self.validate())

    def train_epoch(self):
        for images, labels in self.train_loader:  # expect: missing-train
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(images), labels)
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        hits = 0
        for images, labels in self.val_loader:
            hits += (self.model(images).argmax(1) == labels).sum().item()
        return hits / len(self.val_loader.dataset)


def main():
    data = torchvision.datasets.ImageFolder("cats", transforms.ToTensor())
    train, val = torch.utils.data.random_split(data, [0.8, 0.2])
    model = torchvision.models.efficientnet_b0(num_classes=2)
    Trainer(model, DataLoader(train, 32, shuffle=True), DataLoader(val, 32)).fit(epochs=5)


if __name__ == "__main__":
    main()

# fixed:         self.model.train()
# fixed:         for images, labels in
