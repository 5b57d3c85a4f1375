"""How long does fastai need to reach a test accuracy on Fashion-MNIST?

    python benchmarks/peers/accuracy_fastai.py DATA --target 91

fastai's own parts: its SimpleCNN with batch norm, its fit_one_cycle, its Adam as torch's AdamW,
and its DataLoaders over tensors.
"""

from functools import partial

import torch
from accuracy_shared import Judge, augment, parse, read_tensors
from fastai.vision.all import (
    Callback,
    CancelFitException,
    CrossEntropyLossFlat,
    DataLoaders,
    Learner,
    OptimWrapper,
    SimpleCNN,
    TfmdDL,
)
from torch import nn
from torch.utils.data import TensorDataset

EPOCHS = {91.0: 4, 93.0: 12}
WIDTHS = [1, 32, 64, 128]
RATE = 0.01


class Batches(TfmdDL):
    """Whole batches from tensors, as in fastai's tabular loader: no work per picture."""

    def create_batches(self, samples):
        rows = torch.tensor(list(samples) if samples is not None else range(self.n))
        for part in rows.split(self.bs):
            yield self.dataset[part]

    def to(self, device):
        return self


class Mirror(Callback):
    def before_batch(self):
        if self.training:
            self.learn.xb = (augment(self.xb[0]),)


class Evaluate(Callback):
    """Counts correct predictions during fastai's own validation."""

    def __init__(self, judge) -> None:
        self.judge = judge

    def before_validate(self):
        self.right = self.count = 0

    def after_loss(self):
        if not self.training:
            self.right += int((self.pred.argmax(1) == self.yb[0]).sum())
            self.count += len(self.yb[0])

    def after_validate(self):
        if self.judge.enough(self.right, self.count):
            raise CancelFitException


def make_loaders(options):
    choices = {"bs": options.batch_size, "num_workers": 0, "device": torch.device("cpu")}
    train = TensorDataset(*read_tensors(options.data, "train"))
    test = TensorDataset(*read_tensors(options.data, "t10k"))
    return DataLoaders(
        Batches(train, shuffle=True, drop_last=False, **choices), Batches(test, **choices)
    )


if __name__ == "__main__":
    options = parse(__doc__, EPOCHS)
    judge = Judge(options)
    loaders = make_loaders(options)
    net = nn.Sequential(SimpleCNN(WIDTHS, bn=True), nn.Linear(WIDTHS[-1], 10)).to(
        memory_format=torch.channels_last
    )
    learner = Learner(
        loaders,
        net,
        loss_func=CrossEntropyLossFlat(),
        opt_func=partial(OptimWrapper, opt=torch.optim.AdamW),
        cbs=[Mirror(), Evaluate(judge)],
    )
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(options.epochs, RATE)
    judge.report(len(loaders.train.dataset))
