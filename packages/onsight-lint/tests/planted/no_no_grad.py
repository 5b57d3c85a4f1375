"""Testing a network with all its graphs."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Dropout2d(0.1), nn.Flatten(), nn.Linear(16 * 26 * 26, 10)
    )


def test(model, device, test_loader):
    model.eval()
    correct = 0
    for data, target in test_loader:
        data, target = data.to(device), target.to(device)
        output = model(data)  # expect: missing-no-grad
        pred = output.argmax(dim=1, keepdim=True)
        correct += pred.eq(target.view_as(pred)).sum().item()
    print(f"{correct} of {len(test_loader.dataset)} right")


def main():
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    model = build_model().to(device)
    model.load_state_dict(torch.load("mnist.pt", map_location=device, weights_only=True))
    dataset = datasets.MNIST("data", train=False, transform=transforms.ToTensor())
    test(model, device, DataLoader(dataset, batch_size=1000))


if __name__ == "__main__":
    main()

# fixed:         with torch.no_grad():
# fixed:             output = model(data)
