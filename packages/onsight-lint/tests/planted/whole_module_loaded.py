"""Predictions of a network that comes out of a pickle."""

import sys

import torch
from PIL import Image
from torchvision import transforms


def predict(path):
    # expect: whole-module-pickle
    net = torch.load("net.pth", weights_only=False, map_location="cpu")
    net.eval()
    picture = transforms.ToTensor()(Image.open(path).convert("RGB"))
    with torch.no_grad():
        return net(picture[None]).softmax(dim=1)


if __name__ == "__main__":
    print(predict(sys.argv[1]))
