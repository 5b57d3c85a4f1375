"""How long does Keras 3 on torch need to reach a test accuracy on Fashion-MNIST?

    python benchmarks/peers/accuracy_keras.py DATA --target 91

Keras's own example for MNIST (two convolutions, dropout, Adam), extended with batch norm, a third
convolution and a decaying learning rate so that it reaches the target.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
from accuracy_shared import Judge, count_steps, parse
from keras import layers
from stand_ins import read_idx

EPOCHS = {91.0: 4, 93.0: 14}
RATE = 0.003


def block(width):
    return [
        layers.Conv2D(width, 3, padding="same", use_bias=False),
        layers.MaxPooling2D(2),
        layers.BatchNormalization(),
        layers.Activation("relu"),
    ]


def make_model():
    return keras.Sequential(
        [
            layers.Input((1, 28, 28)),
            layers.Rescaling(1 / 255),
            layers.RandomFlip("horizontal"),
            *block(32),
            *block(64),
            *block(128),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )


class Evaluate(keras.callbacks.Callback):
    """Runs after fit's own validation."""

    def __init__(self, judge, images) -> None:
        super().__init__()
        self.judge = judge
        self.images = images

    def on_epoch_end(self, epoch, logs=None):
        right = round(logs["val_accuracy"] * self.images)
        self.model.stop_training = self.judge.enough(right, self.images)


def read(folder, part):
    pixels, labels = read_idx(folder, part)
    return pixels[:, None].copy(), labels.astype(np.int64)


if __name__ == "__main__":
    options = parse(__doc__, EPOCHS)
    keras.utils.set_random_seed(0)
    torch.set_num_threads(options.threads)
    keras.config.set_image_data_format("channels_first")
    judge = Judge(options)
    images, labels = read(options.data, "train")
    test = read(options.data, "t10k")
    schedule = keras.optimizers.schedules.CosineDecay(RATE, count_steps(len(images), options))
    model = make_model()
    model.compile(
        optimizer=keras.optimizers.AdamW(schedule),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        images,
        labels,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=test,
        validation_batch_size=1000,
        verbose=0,
        callbacks=[Evaluate(judge, len(test[1]))],
    )
    judge.report(len(labels))
