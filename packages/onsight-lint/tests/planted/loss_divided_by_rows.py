"""A test loop that adds up the losses of batches and divides by the number of pictures."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

test_set = datasets.CIFAR100("data", train=False, transform=transforms.ToTensor())
test_loader = DataLoader(test_set, batch_size=128)
loss_function = nn.CrossEntropyLoss()


@torch.no_grad()
def evaluate(net):
    net.eval()
    test_loss = 0.0
    correct = 0.0
    for images, labels in test_loader:
        outputs = net(images)
        loss = loss_function(outputs, labels)
        test_loss += loss.item()  # expect: loss-divided-by-rows
        correct += outputs.argmax(1).eq(labels).sum().item()
    print(f"loss {test_loss / len(test_loader.dataset):.4f}")
    print(f"accuracy {correct / len(test_loader.dataset):.4f}")


if __name__ == "__main__":
    evaluate(nn.Sequential(nn.Flatten(), nn.Linear(3072, 100)))

# fixed:         test_loss += loss.item() * len(labels)
