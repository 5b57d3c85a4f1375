"""How long does the best hand-written loop need to reach a test accuracy on Fashion-MNIST?

    python benchmarks/peers/accuracy_tensors.py DATA --target 91

All pictures are tensors in memory; a compact residual net, AdamW and a one-cycle schedule.
"""

import torch
from accuracy_shared import (
    Judge,
    count_right,
    count_steps,
    loss_of,
    make_optimizer,
    make_resnet,
    parse,
    read_tensors,
)


def train(options, judge, images, labels):
    test = read_tensors(options.data, "t10k")
    net = make_resnet()
    optimizer, schedule = make_optimizer(net, count_steps(len(images), options))
    for _ in range(options.epochs):
        for rows in torch.randperm(len(labels)).split(options.batch_size):
            optimizer.zero_grad()
            loss_of(net, images[rows], labels[rows]).backward()
            optimizer.step()
            schedule.step()
        if judge.enough(count_right(net, *test), len(test[1])):
            return


if __name__ == "__main__":
    options = parse(__doc__)
    judge = Judge(options)
    images, labels = read_tensors(options.data, "train")
    train(options, judge, images, labels)
    judge.report(len(labels))
