"""Everything in functions, and main called as soon as the file is imported."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("-j", "--workers", type=int, default=8)
    return parser.parse_args()


def main():
    args = parse_args()
    data = datasets.ImageFolder(args.data, transforms.ToTensor())
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(len(data.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


main()  # expect: main-guard
