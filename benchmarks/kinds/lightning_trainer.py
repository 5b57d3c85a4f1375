"""Lightning's Trainer: a check of the validation before training, and one after each epoch."""

import sys
import tempfile
from pathlib import Path

import lightning as L
import torch
from net import small_net
from own_clock import OwnClock
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy
from torchvision import transforms
from torchvision.datasets import ImageFolder


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = small_net()
        self.accuracy = MulticlassAccuracy(4)

    def forward(self, images):
        return self.model(images)

    def training_step(self, batch, index):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        self.accuracy(self(images), labels)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


class Clock(L.Callback):
    def __init__(self):
        self.clock = OwnClock()

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.clock.trained(len(batch[0]))


data = Path(sys.argv[1])
to_tensor = transforms.Compose([transforms.Resize((64, 64)), transforms.ToTensor()])
train_loader = DataLoader(ImageFolder(data / "train", to_tensor), batch_size=16, shuffle=True)
val_loader = DataLoader(ImageFolder(data / "val", to_tensor), batch_size=32)
trainer = L.Trainer(
    max_epochs=100,
    accelerator="cpu",
    accumulate_grad_batches=2,
    default_root_dir=tempfile.mkdtemp(prefix="kinds-"),
    logger=False,
    enable_checkpointing=False,
    callbacks=[Clock()],
)
trainer.fit(Classifier(), train_loader, val_loader)
