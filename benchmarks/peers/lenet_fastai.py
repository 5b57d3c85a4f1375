"""How fast does fastai train the LeNet?

    python benchmarks/peers/lenet_fastai.py DATA --kind packed --batch-size 64 --steps 500

torch's SGD in fastai's OptimWrapper: fastai's own SGD is written in Python and slower. Pictures
are scaled in batches, as usual in fastai.
"""

from functools import partial
from pathlib import Path

import torch
from fastai.callback.channelslast import ChannelsLast
from fastai.vision.all import (
    Callback,
    CancelFitException,
    CrossEntropyLossFlat,
    DataLoaders,
    ImageDataLoaders,
    ItemTransform,
    Learner,
    Normalize,
    OptimWrapper,
    Resize,
    ResizeMethod,
)
from shared import HALF, MOMENTUM, RATE, Meter, make_net, parse, read_packed
from torch.utils.data import Dataset


class Packed(Dataset):
    """uint8 pictures (3, 32, 32) one at a time."""

    def __init__(self, folder: Path) -> None:
        pixels, self.labels = map(torch.from_numpy, read_packed(folder))
        self.pixels = pixels.permute(0, 3, 1, 2).contiguous()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index):
        return self.pixels[index], self.labels[index]


class Scale(ItemTransform):
    def encodes(self, batch):
        pixels, labels = batch
        return pixels.float().mul_(1 / 127.5).sub_(1), labels


def make_loaders(options):
    choices = {
        "bs": options.batch_size,
        "num_workers": options.workers,
        "persistent_workers": bool(options.workers and options.persistent_workers),
        "device": torch.device("cpu"),
    }
    if options.kind == "packed":
        pictures = Packed(options.data)
        return DataLoaders.from_dsets(pictures, pictures, after_batch=Scale(), **choices)
    return ImageDataLoaders.from_folder(
        options.data,
        train="train",
        valid="test",
        item_tfms=Resize(32, method=ResizeMethod.Squish),
        batch_tfms=Normalize.from_stats(HALF, HALF, cuda=False),
        **choices,
    )


class Count(Callback):
    def __init__(self, meter) -> None:
        self.meter = meter

    def after_batch(self):
        if self.meter.step(self.learn.loss.item()):
            raise CancelFitException


if __name__ == "__main__":
    options = parse(__doc__)
    meter = Meter(options)
    learner = Learner(
        make_loaders(options),
        make_net(options),
        loss_func=CrossEntropyLossFlat(),
        opt_func=partial(OptimWrapper, opt=torch.optim.SGD, momentum=MOMENTUM),
        lr=RATE,
        cbs=[Count(meter), *([ChannelsLast()] if options.channels_last else [])],
    )
    with learner.no_bar(), learner.no_logging():
        learner.fit(1000)
    meter.report()
