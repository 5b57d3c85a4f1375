"""The weights of the best epoch are not copied, so that they are those of the last epoch."""

import torch
import torch.nn.functional as F


def fit(network, train_loader, val_loader, epochs):
    optimizer = torch.optim.Adam(network.parameters())
    best_accuracy, best_weights = 0.0, None
    for _epoch in range(epochs):
        network.train()
        for images, labels in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(network(images), labels).backward()
            optimizer.step()
        accuracy = evaluate(network, val_loader)
        if accuracy > best_accuracy:
            best_accuracy = accuracy
            best_weights = network.state_dict()  # expect: weights-not-copied
            # fixed:             best_weights = copy.deepcopy(network.state_dict())
    network.load_state_dict(best_weights)


@torch.no_grad()
def evaluate(network, loader):
    network.eval()
    correct = total = 0
    for images, labels in loader:
        correct += (network(images).argmax(dim=1) == labels).sum().item()
        total += len(labels)
    return correct / total
