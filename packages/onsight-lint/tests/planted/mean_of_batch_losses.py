"""A test loop that adds up the losses of batches, and says their mean."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision.transforms import ToTensor

training_data = datasets.FashionMNIST("data", train=True, download=True, transform=ToTensor())
test_data = datasets.FashionMNIST("data", train=False, download=True, transform=ToTensor())
train_dataloader = DataLoader(training_data, batch_size=64, shuffle=True)
test_dataloader = DataLoader(test_data, batch_size=64)


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 10)
        )

    def forward(self, x):
        return self.layers(x)


def train(dataloader, model, loss_fn, optimizer):
    model.train()
    for batch, (X, y) in enumerate(dataloader):  # noqa: N806
        loss = loss_fn(model(X), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if batch % 100 == 0:
            print(f"loss {loss.item():.4f}")


def test(dataloader, model, loss_fn):
    size = len(dataloader.dataset)
    num_batches = len(dataloader)
    model.eval()
    test_loss, correct = 0.0, 0.0
    with torch.no_grad():
        for X, y in dataloader:  # noqa: N806
            pred = model(X)
            test_loss += loss_fn(pred, y).item()
            correct += (pred.argmax(1) == y).type(torch.float).sum().item()
    test_loss /= num_batches  # expect: mean-of-batch-means
    print(f"accuracy {correct / size:.2%}, loss {test_loss:.4f}")


network = NeuralNetwork()
for _ in range(5):
    train(train_dataloader, network, nn.CrossEntropyLoss(), torch.optim.SGD(network.parameters()))
    test(test_dataloader, network, nn.CrossEntropyLoss())

# fixed:     test_loss /= len(dataloader.dataset)
