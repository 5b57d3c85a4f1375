"""How long does Accelerate need to reach a test accuracy on Fashion-MNIST?

    python benchmarks/peers/accuracy_accelerate.py DATA --target 91

The net and the schedule of the hand-written loop, with its tensors in a DataLoader.
"""

from accelerate import Accelerator
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
from torch.utils.data import DataLoader, TensorDataset


def train(options, judge, train_set):
    test = read_tensors(options.data, "t10k")
    accelerator = Accelerator(cpu=True)
    net = make_resnet()
    optimizer, schedule = make_optimizer(net, count_steps(len(train_set), options))
    loader = DataLoader(train_set, batch_size=options.batch_size, shuffle=True)
    net, optimizer, schedule, loader = accelerator.prepare(net, optimizer, schedule, loader)
    for _ in range(options.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(loss_of(net, images, labels))
            optimizer.step()
            schedule.step()
        if judge.enough(count_right(net, *test), len(test[1])):
            return


if __name__ == "__main__":
    options = parse(__doc__)
    judge = Judge(options)
    train_set = TensorDataset(*read_tensors(options.data, "train"))
    train(options, judge, train_set)
    judge.report(len(train_set))
