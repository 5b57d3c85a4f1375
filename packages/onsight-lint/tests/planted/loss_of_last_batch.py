"""The validation loss is that of the last batch."""

import torch
import torch.nn.functional as F


@torch.no_grad()
def validate(network, val_loader):
    network.eval()
    for images, labels in val_loader:
        loss = F.cross_entropy(network(images), labels)
        val_loss = loss.item()  # expect: last-batch-only
        # fixed:         val_loss_sum += loss.item() * len(labels)  # for each batch
    print(f"validation loss {val_loss:.3f}")
