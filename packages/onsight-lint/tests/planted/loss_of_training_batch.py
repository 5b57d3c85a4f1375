"""The validation adds up the loss of the last training batch, again and again."""

import torch


def run_epoch(network, loss_function, optimizer, train_loader, val_loader):
    network.train()
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = loss_function(network(images), labels)
        loss.backward()
        optimizer.step()
    network.eval()
    val_loss = 0
    with torch.no_grad():
        for images, labels in val_loader:
            val_loss_of_batch = loss_function(network(images), labels)
            val_loss += loss.item() * len(labels)  # expect: last-batch-only
            print(val_loss_of_batch)
    return val_loss / len(val_loader.dataset)


# fixed:             loss = loss_function(network(images), labels)
