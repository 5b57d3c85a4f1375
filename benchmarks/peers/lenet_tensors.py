"""How fast is the best hand-written loop, with all pictures as one tensor in memory?

    python benchmarks/peers/lenet_tensors.py DATA --kind packed --batch-size 64 --steps 500

torch.randperm, index, scale, step: no work per picture. Compared with this loop, the cost of any
trainer shows. PNG files are decoded once and kept beside the folder, as an engineer who trains
more than once would do.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from shared import Meter, make_net, make_sgd, parse, read_packed
from torch import nn
from torchvision import datasets, transforms


def read_pictures(options):
    """uint8 (n, 32, 32, 3) and labels (n,)."""
    if options.kind == "packed":
        return map(torch.from_numpy, read_packed(options.data))
    kept = options.data / "train.pt"
    if not kept.exists():
        folder = datasets.ImageFolder(options.data / "train", transforms.Resize((32, 32)))
        with ThreadPoolExecutor() as pool:
            pictures = list(pool.map(lambda row: np.asarray(folder[row][0]), range(len(folder))))
        torch.save((torch.from_numpy(np.stack(pictures)), torch.tensor(folder.targets)), kept)
    return torch.load(kept, weights_only=True)


def scaled(pixels, options):
    """Float (B, 3, 32, 32) from -1 to 1; the pictures are stored channels last."""
    inputs = pixels.permute(0, 3, 1, 2)
    if not options.channels_last:
        inputs = inputs.contiguous()
    return inputs.float().mul_(1 / 127.5).sub_(1)


def train(options, meter):
    pixels, labels = read_pictures(options)
    net = make_net(options)
    criterion, optimizer = nn.CrossEntropyLoss(), make_sgd(net)
    for _ in itertools.count():
        for rows in torch.randperm(len(labels)).split(options.batch_size):
            optimizer.zero_grad()
            loss = criterion(net(scaled(pixels[rows], options)), labels[rows])
            loss.backward()
            optimizer.step()
            if meter.step(loss.item()):
                return


if __name__ == "__main__":
    options = parse(__doc__)
    meter = Meter(options)
    train(options, meter)
    meter.report()
