"""WebDataset: pictures in tar files, three shards."""

import sys
from pathlib import Path

import torch
import webdataset as wds
from net import small_net
from own_clock import OwnClock
from torch import nn
from torchvision import transforms

data = Path(sys.argv[1])
augment = transforms.Compose(
    [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)
shards = sorted(str(file) for file in data.glob("shard-*.tar"))
dataset = (
    wds.WebDataset(shards, shardshuffle=len(shards))
    .shuffle(200)
    .decode("pil")
    .to_tuple("jpg", "cls")
    .map_tuple(augment, int)
    .batched(32)
)
loader = wds.WebLoader(dataset, batch_size=None, num_workers=1)
model, criterion, clock = small_net(), nn.CrossEntropyLoss(), OwnClock()
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
for _epoch in range(100):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images), torch.as_tensor(labels))
        loss.backward()
        optimizer.step()
        clock.trained(len(images))
