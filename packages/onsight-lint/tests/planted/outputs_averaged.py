"""A Lightning module averages the losses of its batches, and the last batch is smaller."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class Classifier(pl.LightningModule):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def training_step(self, batch, _):
        images, labels = batch
        return F.cross_entropy(self.network(images), labels)

    def validation_step(self, batch, _):
        images, labels = batch
        loss = F.cross_entropy(self.network(images), labels)
        return {"val_loss": loss}

    def validation_epoch_end(self, outputs):
        losses = [output["val_loss"] for output in outputs]
        self.log("val_loss", torch.stack(losses).mean())  # expect: mean-of-batch-means

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

    def train_dataloader(self):
        images = datasets.ImageFolder("train", transforms.ToTensor())
        return DataLoader(images, batch_size=30)  # expect: unshuffled-training

    def val_dataloader(self):
        images = datasets.ImageFolder("val", transforms.ToTensor())
        return DataLoader(images, batch_size=30)
