"""A trainer as a class, with metrics that are modules and a checkpoint with everything in it."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, random_split
from torchvision import datasets, transforms
from tqdm import tqdm


@dataclass
class Config:
    data: str = "pictures"
    batch_size: int = 64
    epochs: int = 20
    lr: float = 3e-4
    workers: int = 4
    accumulate: int = 2
    checkpoint: Path = Path("last.pt")
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        rows, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(rows, tokens, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) / (dim // self.heads) ** 0.5, dim=-1)
        x = (self.drop(weights) @ v).transpose(1, 2).reshape(rows, tokens, dim)
        return self.out(x)


class TinyViT(nn.Module):
    def __init__(self, classes, dim=128, patch=8):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.attention = Attention(dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.attention(self.norm(x))
        x = self.head(x.mean(dim=1))
        if self.training:
            return x
        return torch.softmax(x, dim=1)


class Trainer:
    def __init__(self, config):
        self.config = config
        self.device = torch.device(config.device)
        dataset = datasets.ImageFolder(config.data, transforms.ToTensor())
        train_set, val_set = random_split(dataset, [0.9, 0.1])
        settings = {"batch_size": config.batch_size, "num_workers": config.workers}
        self.train_loader = DataLoader(train_set, shuffle=True, drop_last=True, **settings)
        self.val_loader = DataLoader(val_set, **settings)
        self.model = TinyViT(len(dataset.classes)).to(self.device)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr)
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=len(dataset.classes))
        self.accuracy.to(self.device)
        self.epoch = 0
        self.best = 0.0
        self.history = []

    def fit(self):
        self.resume()
        while self.epoch < self.config.epochs:
            loss = self.train_epoch()
            accuracy = self.evaluate()
            self.history.append((loss, accuracy))
            print(f"{self.epoch}: loss {loss:.3f}, accuracy {accuracy:.2%}")
            if accuracy > self.best:
                self.best = accuracy
                self.save()
            self.epoch += 1

    def train_epoch(self):
        self.model.train()
        self.optimizer.zero_grad()
        running = 0.0
        progress = tqdm(self.train_loader, desc=f"epoch {self.epoch}")
        for step, (images, labels) in enumerate(progress, 1):
            images, labels = self.to_device(images, labels)
            loss = self.criterion(self.model(images), labels)
            penalty = 0.0
            for parameter in self.model.head.parameters():
                penalty += parameter.square().sum()
            total = loss + 1e-4 * penalty
            (total / self.config.accumulate).backward()
            if step % self.config.accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            running += loss.detach()
            progress.set_postfix(loss=loss.item())
        return running.item() / len(self.train_loader)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        self.accuracy.reset()
        for images, labels in self.val_loader:
            images, labels = self.to_device(images, labels)
            self.accuracy.update(self.model(images), labels)
        return self.accuracy.compute().item()

    def to_device(self, *tensors):
        return [tensor.to(self.device, non_blocking=True) for tensor in tensors]

    def save(self):
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "best": self.best,
        }
        torch.save(state, self.config.checkpoint)

    def resume(self):
        if self.config.checkpoint.exists():
            state = torch.load(self.config.checkpoint, map_location=self.device)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.epoch, self.best = state["epoch"] + 1, state["best"]


if __name__ == "__main__":
    Trainer(Config()).fit()
