"""How long does Lightning need to reach a test accuracy on Fashion-MNIST?

    python benchmarks/peers/accuracy_lightning.py DATA --target 91

The net and the schedule of the hand-written loop, with its tensors in a DataLoader.
"""

import logging

import lightning
from accuracy_shared import (
    Judge,
    count_right,
    count_steps,
    loss_of,
    make_optimizer,
    make_resnet,
    parse,
    read_tensors,
)
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    def __init__(self, steps) -> None:
        super().__init__()
        self.net = make_resnet()
        self.steps = steps

    def training_step(self, batch, _):
        return loss_of(self.net, *batch)

    def configure_optimizers(self):
        optimizer, schedule = make_optimizer(self.net, self.steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Evaluate(lightning.Callback):
    def __init__(self, judge, test) -> None:
        self.judge = judge
        self.test = test

    def on_train_epoch_end(self, trainer, module):
        right = count_right(module.net, *self.test)
        trainer.should_stop = self.judge.enough(right, len(self.test[1]))


if __name__ == "__main__":
    options = parse(__doc__)
    judge = Judge(options)
    train_set = TensorDataset(*read_tensors(options.data, "train"))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        min_epochs=0,
        max_epochs=options.epochs,
        barebones=True,
        callbacks=[Evaluate(judge, read_tensors(options.data, "t10k"))],
    )
    loader = DataLoader(train_set, batch_size=options.batch_size, shuffle=True)
    trainer.fit(Module(count_steps(len(train_set), options)), loader)
    judge.report(len(train_set))
