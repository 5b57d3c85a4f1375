"""A history of losses that are still tensors with graphs, in mixed precision."""

import matplotlib.pyplot as plt
import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def main():
    data = datasets.ImageFolder("birds", transforms.ToTensor())
    train_loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=4, drop_last=True)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=len(data.classes)).cuda()
    criterion = LabelSmoothingCrossEntropy(smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler()
    losses = []
    for _epoch in range(10):
        for images, labels in train_loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(images.cuda()), labels.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss)  # expect: graph-kept
    plt.plot([float(loss) for loss in losses])
    plt.savefig("losses.png")


if __name__ == "__main__":
    main()

# fixed:             losses.append(loss.detach())
