"""Automatic mixed precision with a GradScaler around the optimizer."""

import sys
from pathlib import Path

import torch
from net import small_net
from own_clock import OwnClock
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

data = Path(sys.argv[1])
to_tensor = transforms.Compose([transforms.Resize((64, 64)), transforms.ToTensor()])
train_loader = DataLoader(
    ImageFolder(data / "train", to_tensor), batch_size=16, shuffle=True, num_workers=2
)
model, criterion, clock = small_net(), nn.CrossEntropyLoss(), OwnClock()
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
for _epoch in range(100):
    for images, labels in train_loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        clock.trained(len(images))
