"""Small grey pictures and a perceptron; planted fault: .item() reads each picture's result.

python sync_in_loop.py DATA
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(28 * 28, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, x):
        return self.layers(x)


def load(root, part):
    images = torch.from_numpy(np.load(Path(root) / f"{part}-images.npy"))
    labels = torch.from_numpy(np.load(Path(root) / f"{part}-labels.npy"))
    return TensorDataset(images.float().div(255).sub(0.5), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_loader = DataLoader(load(args.data, "train"), batch_size=args.batch_size, shuffle=True)

    model = Net().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        correct, confidence, hardest, running_loss = 0, 0.0, 0.0, 0.0
        begun, seen = time.perf_counter(), 0
        for step, (images, labels) in enumerate(train_loader, 1):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            outputs = model(images)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()

            running_loss += loss.item()
            for i in range(len(labels)):
                probabilities = torch.softmax(outputs[i], dim=0)
                predicted = probabilities.argmax().item()
                if predicted == labels[i].item():
                    correct += 1
                confidence += probabilities[predicted].item()
                hardest = max(hardest, criterion(outputs[i], labels[i]).item())
            seen += len(labels)
            if step % 50 == 0:
                speed = seen / (time.perf_counter() - begun)
                print(
                    f"epoch {epoch} step {step} loss {running_loss / step:.3f} "
                    f"accuracy {correct / seen:.3f} confidence {confidence / seen:.3f} "
                    f"hardest {hardest:.1f} {speed:.0f} images/s"
                )


if __name__ == "__main__":
    main()
