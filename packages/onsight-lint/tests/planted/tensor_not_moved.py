"""A small net on Fashion-MNIST: one of the two tensors never reaches the GPU."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.hidden = nn.Linear(28 * 28, 128)
        self.out = nn.Linear(128, 10)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(self.flatten(x))))


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = datasets.FashionMNIST("data", transform=transforms.ToTensor(), download=True)
    loader = DataLoader(data, batch_size=100, shuffle=True)
    model = Net()
    model.to(device)
    criterion = nn.CrossEntropyLoss()
    criterion.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in loader:
        images = images.to(device)
        labels.to(device)  # expect: discarded-move
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()

# fixed:         labels = labels.to(device)
