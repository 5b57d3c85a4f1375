"""How fast does Lightning train the LeNet?

    python benchmarks/peers/lenet_lightning.py DATA --kind packed --batch-size 64 --steps 500

barebones: Lightning's own switch for measuring raw speed, without logger, bars and checkpoints.
"""

import logging

import lightning
from shared import Meter, make_loader, make_net, make_sgd, parse, set_memory_format
from torch import nn

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    def __init__(self, options) -> None:
        super().__init__()
        self.options = options
        self.net = make_net(options)
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch, _):
        inputs, labels = batch
        return self.criterion(self.net(set_memory_format(inputs, self.options)), labels)

    def configure_optimizers(self):
        return make_sgd(self.net)


class Count(lightning.Callback):
    def __init__(self, meter) -> None:
        self.meter = meter

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        trainer.should_stop = self.meter.step(outputs["loss"].item())


if __name__ == "__main__":
    options = parse(__doc__)
    meter = Meter(options)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        min_epochs=0,
        max_epochs=-1,
        barebones=True,
        callbacks=[Count(meter)],
    )
    trainer.fit(Module(options), make_loader(options))
    meter.report()
