"""How fast does Hugging Face Accelerate train the LeNet?

python benchmarks/peers/lenet_accelerate.py DATA --kind packed --batch-size 64 --steps 500
"""

import itertools

from accelerate import Accelerator
from shared import Meter, make_loader, make_net, make_sgd, parse, set_memory_format
from torch import nn


def train(options, meter):
    accelerator = Accelerator(cpu=True)
    net = make_net(options)
    net, optimizer, loader = accelerator.prepare(net, make_sgd(net), make_loader(options))
    criterion = nn.CrossEntropyLoss()
    for _ in itertools.count():
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(set_memory_format(inputs, options)), labels)
            accelerator.backward(loss)
            optimizer.step()
            if meter.step(loss.item()):
                return


if __name__ == "__main__":
    options = parse(__doc__)
    meter = Meter(options)
    train(options, meter)
    meter.report()
