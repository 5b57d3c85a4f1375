"""Oracle: the recipe's training as its tutorials write it, on the same images in this order."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from portable import THREADS
from torch import nn

import onsight
from onsight.data.index import TRAIN
from onsight.models.catalog import make_model
from onsight.randomness import key, permutation
from onsight.report.console import SilentReporter
from onsight.step.step import Step
from onsight.tensorfile import read_tensors
from onsight.training import open_data

EPOCHS, IMAGES = 2, 402


class LeNet(nn.Module):
    """The tutorials' network, written out."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


@pytest.fixture
def cifar(tmp_path):
    """A small folder in the format of CIFAR-10's authors."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()

    def write(name, count):
        labels = [number % 10 for number in range(count)]
        data = rng.integers(0, 256, (count, 3072), np.uint8)
        data[:, :1024] //= 1 + np.array(labels, np.uint8)[:, None]
        content = {b"data": data, b"labels": labels}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))

    for number, count in enumerate((82, 80, 80, 80, 80), start=1):
        write(f"data_batch_{number}", count)
    write("test_batch", 40)
    names = {b"label_names": [f"class{number}".encode() for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))
    return folder


@pytest.fixture
def trained(cifar, tmp_path, monkeypatch):
    """A function that trains by the recipe and returns the run, its losses and its data."""
    losses, opened = [], []
    real_step, real_open = Step.__call__, open_data.open_dataset

    def noted_step(self, *batch):
        known = real_step(self, *batch)
        losses.extend(known)
        return known

    def noted_open(*arguments):
        opened.append(real_open(*arguments))
        return opened[-1]

    def train(**fields):
        monkeypatch.setattr(Step, "__call__", noted_step)
        monkeypatch.setattr(open_data, "open_dataset", noted_open)
        fields |= {"recipe": "cifar10-lenet", "epochs": EPOCHS, "threads": THREADS, "device": "cpu"}
        run = onsight.train(cifar, out=tmp_path / "run", reporter=SilentReporter(), **fields)
        return run, losses, opened[0]

    return train


class Precise(LeNet):
    """The same in float64, where another memory layout makes no visible difference."""

    def forward(self, x):
        return super().forward(x.double())


def plain_loop(dataset, batch_size, net=None):
    """Losses and final weights of the loop that every tutorial writes."""
    images, ids = dataset.images, dataset.ids(TRAIN)
    assert len(ids) == IMAGES
    x = images.pixels[images.rows].view(-1, 32, 32, 3).permute(0, 3, 1, 2).contiguous()
    x = (x.float() / 255 - 0.5) / 0.5
    net = net or recipes_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    losses = []
    for epoch in range(EPOCHS):
        order = ids[permutation(0, epoch, len(ids))]
        for batch in torch.split(order, batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x[batch]), images.labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, list(net.state_dict().values())


def recipes_net():
    """The tutorials' network with the recipe's initial weights."""
    torch.manual_seed(key(0) >> 1)
    initial = make_model("lenet", (3, 32, 32), 10).state_dict()
    net = LeNet()
    net.load_state_dict(dict(zip(net.state_dict(), initial.values(), strict=True)))
    return net


@pytest.mark.parametrize("batch_size", [4, 32])
def test_the_recipe_equals_the_tutorials_loop_bit_for_bit(trained, batch_size):
    run, losses, dataset = trained(batch_size=batch_size, memory_format="contiguous")
    expected, weights = plain_loop(dataset, batch_size)
    assert losses == expected
    net = make_model("lenet", (3, 32, 32), 10)
    saved = read_tensors(run.path / "checkpoints" / "best.safetensors")[0]
    for name, theirs in zip(net.state_dict(), weights, strict=True):
        assert torch.equal(saved[name], theirs), name


def test_channels_last_changes_no_more_than_rounding(trained):
    plain = Precise().double()
    net = copy.deepcopy(plain)
    _, losses, dataset = trained(batch_size=4, model=net)
    assert net.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    expected, _ = plain_loop(dataset, 4, plain)
    assert losses == pytest.approx(expected, rel=1e-10)
