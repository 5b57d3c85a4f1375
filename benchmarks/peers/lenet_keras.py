"""How fast does Keras 3 on torch train the LeNet?

    python benchmarks/peers/lenet_keras.py DATA --kind packed --batch-size 64 --steps 500

Packed pictures go to `fit` as arrays, and PNG files through torch's DataLoader, which `fit` also
accepts: Keras's own reader of folders needs TensorFlow. --channels-last is Keras's data format. The
initial weights are drawn as torch draws them, so that the losses can be compared.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from keras import layers
from shared import CLASSES, MOMENTUM, RATE, LeNet, Meter, make_loader, parse, read_packed


def make_model(options):
    shape = (32, 32, 3) if options.channels_last else (3, 32, 32)
    # Loaders give floats from -1 to 1; arrays hold bytes, which are scaled in batches.
    scale = [layers.Rescaling(1 / 127.5, offset=-1)] if options.kind == "packed" else []
    return keras.Sequential(
        [
            layers.Input(shape),
            *scale,
            layers.Conv2D(6, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(120, activation="relu"),
            layers.Dense(84, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )


def take_weights(model, options):
    """The initial weights of the torch net: kernels as HWIO, fc1 in the order of Flatten."""
    torch.manual_seed(0)
    state = {name: value.numpy() for name, value in LeNet().state_dict().items()}
    if options.channels_last:
        fc1 = state["fc1.weight"].reshape(-1, 16, 5, 5)
        state["fc1.weight"] = fc1.transpose(0, 2, 3, 1).reshape(len(fc1), -1)
    model.set_weights(
        [value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T for value in state.values()]
    )


class Count(keras.callbacks.Callback):
    """Keras reports the mean loss of the epoch so far; the batch's follows from two of them."""

    def __init__(self, meter) -> None:
        super().__init__()
        self.meter = meter
        self.total = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.total = 0.0

    def on_train_batch_end(self, batch, logs=None):
        total = logs["loss"] * (batch + 1)
        self.model.stop_training = self.meter.step(total - self.total)
        self.total = total


def pictures(options):
    """What `fit` takes: arrays with a batch size, or a loader."""
    if options.kind == "packed":
        pixels, labels = read_packed(options.data)
        pixels = pixels if options.channels_last else pixels.transpose(0, 3, 1, 2).copy()
        return {"x": pixels, "y": labels, "batch_size": options.batch_size, "shuffle": True}
    loader = make_loader(options)
    if options.channels_last:
        loader.dataset.transform.transforms.append(lambda picture: picture.permute(1, 2, 0))
    return {"x": loader}


if __name__ == "__main__":
    options = parse(__doc__)
    keras.utils.set_random_seed(0)
    torch.set_num_threads(options.threads)
    keras.config.set_image_data_format(
        "channels_last" if options.channels_last else "channels_first"
    )
    meter = Meter(options)
    model = make_model(options)
    take_weights(model, options)
    model.compile(
        optimizer=keras.optimizers.SGD(RATE, momentum=MOMENTUM),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(**pictures(options), epochs=1000, verbose=0, callbacks=[Count(meter)])
    meter.report()
