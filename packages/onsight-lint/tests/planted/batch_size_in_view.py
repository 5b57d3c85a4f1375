"""A network that is told its batch size."""

import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, stride=2)
        self.out = nn.Linear(8 * 13 * 13, 10)

    def forward(self, x):
        x = F.relu(self.conv(x))
        x = x.view(48, -1)  # expect: hard-coded-batch-size
        return self.out(x)


def main():
    data = datasets.EMNIST("data", split="letters", transform=transforms.ToTensor())
    train_loader = DataLoader(data, batch_size=48, shuffle=True, drop_last=True)
    net = Net()
    optimizer = optim.Adam(net.parameters())
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), targets).backward()
        optimizer.step()


if __name__ == "__main__":
    main()

# fixed:         x = x.view(x.size(0), -1)
