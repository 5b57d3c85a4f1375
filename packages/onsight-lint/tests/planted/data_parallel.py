"""Several GPUs in one process."""

import torch
import torch.nn as nn
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms


def main():
    data = torchvision.datasets.ImageFolder("imagenet/train", transforms.ToTensor())
    loader = DataLoader(data, batch_size=512, shuffle=True, num_workers=8)
    model = torchvision.models.resnet50()
    if torch.cuda.device_count() > 1:
        model = nn.DataParallel(model)  # expect: data-parallel
    model.cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _epoch in range(90):
        for images, labels in loader:
            loss = criterion(model(images.cuda()), labels.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()

# fixed: model = nn.parallel.DistributedDataParallel(model, device_ids=
