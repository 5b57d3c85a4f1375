"""A step in a function of its own, which gets bytes and wants floats."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_step(model, loss_fn, optimizer, images, labels):
    images.float()  # expect: discarded-move
    optimizer.zero_grad()
    loss = loss_fn(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    pixels = torch.randint(0, 256, (512, 1, 8, 8), dtype=torch.uint8)
    loader = DataLoader(TensorDataset(pixels, torch.randint(0, 10, (512,))), batch_size=64)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    model.float()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        for batch in loader:
            images, labels = batch
            print(train_step(model, nn.CrossEntropyLoss(), optimizer, images, labels))


if __name__ == "__main__":
    main()
