"""An Accelerate loop with accumulated gradients."""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from net import small_net
from own_clock import OwnClock
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

data = Path(sys.argv[1])
to_tensor = transforms.Compose([transforms.Resize((64, 64)), transforms.ToTensor()])
train_loader = DataLoader(ImageFolder(data / "train", to_tensor), batch_size=16, shuffle=True)
val_loader = DataLoader(ImageFolder(data / "val", to_tensor), batch_size=32)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, criterion, clock = small_net(), nn.CrossEntropyLoss(), OwnClock()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
model, optimizer, train_loader, val_loader = accelerator.prepare(
    model, optimizer, train_loader, val_loader
)
for epoch in range(100):
    model.train()
    for images, labels in train_loader:
        with accelerator.accumulate(model):
            loss = criterion(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        clock.trained(len(images))
    model.eval()
    correct = 0
    for images, labels in val_loader:
        with torch.no_grad():
            predicted = model(images).argmax(1)
        predicted, labels = accelerator.gather_for_metrics((predicted, labels))
        correct += (predicted == labels).sum().item()
    accelerator.print(epoch, correct)
