"""How fast does the training loop of the PyTorch tutorials train the LeNet?

python benchmarks/peers/lenet_tutorial.py DATA --kind packed --batch-size 64 --steps 500
"""

import itertools

from shared import Meter, make_loader, make_net, make_sgd, parse, set_memory_format
from torch import nn


def train(options, meter):
    loader, net = make_loader(options), make_net(options)
    criterion, optimizer = nn.CrossEntropyLoss(), make_sgd(net)
    for _ in itertools.count():
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(set_memory_format(inputs, options)), labels)
            loss.backward()
            optimizer.step()
            if meter.step(loss.item()):
                return


if __name__ == "__main__":
    options = parse(__doc__)
    meter = Meter(options)
    train(options, meter)
    meter.report()
