"""fastai's Learner, with its own loaders, optimizer and augmentation of batches."""

import sys
from pathlib import Path

from fastai.callback.core import Callback
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat
from fastai.metrics import accuracy
from fastai.vision.augment import Resize, aug_transforms
from fastai.vision.data import ImageDataLoaders
from net import small_net
from own_clock import OwnClock


class Clock(Callback):
    own = OwnClock()

    def after_batch(self):
        if self.learn.training:
            self.own.trained(len(self.learn.xb[0]))


if __name__ == "__main__":
    dls = ImageDataLoaders.from_folder(
        Path(sys.argv[1]),
        train="train",
        valid="val",
        bs=16,
        item_tfms=Resize(64),
        batch_tfms=aug_transforms(max_warp=0.0),
        num_workers=0,
    )
    learn = Learner(
        dls, small_net(), loss_func=CrossEntropyLossFlat(), metrics=accuracy, cbs=[Clock()]
    )
    learn.fit(100, 1e-3)
