"""The best network, pickled with its class."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, x):
        return self.layers(x)


def main():
    rows = TensorDataset(torch.randn(600, 20), torch.randint(0, 3, (600,)))
    classifier = Classifier(20, 3)
    optimizer = optim.Adam(classifier.parameters())
    best = float("inf")
    for epoch in range(20):
        for x, y in DataLoader(rows, batch_size=50, shuffle=True):
            loss = nn.functional.cross_entropy(classifier(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if loss.item() < best:
            best = loss.item()
            torch.save(classifier, f"best_{epoch}.pt")  # expect: whole-module-pickle


if __name__ == "__main__":
    main()

# fixed: torch.save(classifier.state_dict(), f"best_{epoch}.pt")
