"""How accurate is fastai's fine_tune after some seconds?

    python benchmarks/peers/auto_fastai.py TRAIN TEST --seconds 60

It uses fastai's own parts: vision_learner with its head, item and batch transforms, and fine_tune.
That trains the head for one epoch, then everything for as many epochs as there is time for. If two
epochs do not fit, both use fewer images, drawn at random.
"""

import argparse
import random
import time
from typing import Any

import torch
from auto_shared import (
    DEVIATION,
    MEAN,
    NETWORK,
    Images,
    autocast,
    evaluation_seconds,
    find_correct,
    make_net,
    make_parser,
    memory_format,
    read_images,
    report,
    seconds_left,
    start,
)
from fastai.vision.all import (
    Callback,
    CancelFitException,
    CategoryBlock,
    CrossEntropyLossFlat,
    DataBlock,
    DataLoaders,
    ImageBlock,
    IndexSplitter,
    Learner,
    Normalize,
    Resize,
    ResizeMethod,
    aug_transforms,
    vision_learner,
)

TIMED_BATCHES = 4
SLACK = 1.1  # factor on the time of a batch
METHODS = {"crop": ResizeMethod.Crop, "stretch": ResizeMethod.Squish}


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--item-share", type=float, default=1.25, help="relative to --size")
    parser.add_argument("--base-rate", type=float, default=2e-3, help="fine_tune's base_lr")
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    return start(parser)


class InFormat(Callback):
    """Apply the memory format and precision of the options."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def before_batch(self) -> None:
        images = self.learn.xb[0].as_subclass(torch.Tensor)
        self.learn.xb = (images.contiguous(memory_format=memory_format(self.options)),)
        self.cast = autocast(self.options)
        self.cast.__enter__()

    def after_pred(self) -> None:
        self.cast.__exit__(None, None, None)
        self.learn.pred = self.pred.float()


class InTime(Callback):
    """End training when the time is up, in case the machine has become slower."""

    def __init__(self, options: argparse.Namespace, reserved: float) -> None:
        self.options, self.reserved = options, reserved

    def after_batch(self) -> None:
        if seconds_left(self.options, self.reserved) < 0:
            raise CancelFitException


def make_loaders(images: Images, options: argparse.Namespace) -> DataLoaders:
    """Load training images in random order, so that the first ones are a random sample."""
    numbers = list(range(len(images)))
    random.Random(options.seed).shuffle(numbers)
    block = DataBlock(
        blocks=(ImageBlock, CategoryBlock(vocab=images.classes)),
        get_x=lambda number: images.open(number),
        get_y=lambda number: images.classes[images.labels[number]],
        splitter=IndexSplitter([]),  # the test images are only used at the end
        item_tfms=Resize(round(options.item_share * options.size), METHODS[options.fit]),
        batch_tfms=[
            *aug_transforms(size=options.size, min_scale=0.75),
            Normalize.from_stats(MEAN, DEVIATION, cuda=False),
        ],
    )
    return block.dataloaders(
        numbers, bs=options.batch_size, num_workers=options.workers, device=torch.device("cpu")
    )


def make_learner(loaders: DataLoaders, options: argparse.Namespace, classes: int) -> Learner:
    """A learner with timm's network and the weights that all contenders share."""
    learner = vision_learner(
        loaders,
        NETWORK,
        pretrained=False,
        n_out=classes,
        loss_func=CrossEntropyLossFlat(label_smoothing=options.label_smoothing),
        cbs=[InFormat(options)],
    )
    published: Any = make_net(options, classes)
    published.reset_classifier(0)
    learner.model[0].model.load_state_dict(published.state_dict())
    learner.model.to(memory_format=memory_format(options))
    return learner


def batch_seconds(trial: Learner) -> float:
    """Measure the seconds per training batch; this changes the learner."""
    stamps: list[float] = []

    class Stamp(Callback):
        def after_batch(self) -> None:
            stamps.append(time.perf_counter())
            if len(stamps) > TIMED_BATCHES:
                raise CancelFitException

    trial.fit(1, cbs=[Stamp()])
    return SLACK * (stamps[-1] - stamps[0]) / max(1, len(stamps) - 1)


def fit_epochs(loaders: DataLoaders, batches: int) -> int:
    """The number of epochs after the first that fit; if none does, shorten the epochs."""
    epoch = len(loaders.train)
    if batches >= 2 * epoch:
        return batches // epoch - 1
    loaders.train.n = max(1, batches // 2) * loaders.train.bs
    return 1


def main() -> None:
    options = parse()
    images, test = read_images(options, None)
    loaders = make_loaders(images, options)
    classes = len(test.classes)
    learner, trial = (make_learner(loaders, options, classes) for _ in range(2))
    reserved = evaluation_seconds(learner.model, test, options)
    with trial.no_bar(), trial.no_logging():
        seconds = batch_seconds(trial)
    epochs = fit_epochs(loaders, int(seconds_left(options, reserved) / seconds))
    with learner.no_bar(), learner.no_logging():
        learner.fine_tune(epochs, options.base_rate, cbs=[InTime(options, reserved)])
    report(find_correct(learner.model, test, options), test)


if __name__ == "__main__":
    main()
