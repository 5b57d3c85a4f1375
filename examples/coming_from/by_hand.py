"""Train, evaluate, save and use a classifier with PyTorch and torchvision alone.

python by_hand.py clothes new/01.png 5     (class folders, an image, epochs)
"""

import sys

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder
from torchvision.models import resnet18
from torchvision.transforms import v2

SIZE = 32
to_tensor = [
    v2.Resize((SIZE, SIZE)),
    v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize([0.5] * 3, [0.5] * 3),
]
augment = v2.Compose([v2.RandomHorizontalFlip(), *to_tensor])
prepare = v2.Compose(to_tensor)


def evaluate(model, loader, device, classes):
    """Count the images of each class, and those classified correctly."""
    right, images = torch.zeros(classes), torch.zeros(classes)
    model.eval()
    with torch.inference_mode():
        for batch, labels in loader:
            correct = model(batch.to(device)).argmax(1).cpu() == labels
            images += torch.bincount(labels, minlength=classes)
            right += torch.bincount(labels[correct], minlength=classes)
    return right, images


if __name__ == "__main__":
    data, image, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)

    train_images, test_images = ImageFolder(data, augment), ImageFolder(data, prepare)
    names, order = train_images.classes, torch.randperm(len(train_images)).tolist()
    held_out = len(order) // 5
    train = DataLoader(
        Subset(train_images, order[held_out:]), 32, shuffle=True, pin_memory=device.type == "cuda"
    )
    test = DataLoader(Subset(test_images, order[:held_out]), 256)

    # More usual: resnet18(weights="DEFAULT") and a new last layer, which downloads weights.
    model = resnet18(num_classes=len(names)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, epochs * len(train))
    for epoch in range(epochs):
        model.train()
        total = torch.zeros((), device=device)
        for batch, labels in train:
            batch, labels = batch.to(device, non_blocking=True), labels.to(device)
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach() * len(labels)
        print(f"epoch {epoch + 1}: mean loss {total.item() / len(train.dataset):.3f}")

    right, images = evaluate(model, test, device, len(names))
    for name, correct, count in zip(names, right, images, strict=True):
        print(f"{name:12} recall {correct / count:.2f}, {count:.0f} images")
    print(f"accuracy {right.sum() / images.sum():.3f}, {held_out} images")

    torch.save({"state": model.state_dict(), "classes": names, "size": SIZE}, "model.pt")
    saved = torch.load("model.pt", weights_only=True)
    model.load_state_dict(saved["state"])
    model.eval()
    with torch.inference_mode():
        probabilities = model(prepare(Image.open(image).convert("RGB"))[None].to(device)).softmax(1)
    print(saved["classes"][probabilities.argmax()], f"{probabilities.max():.3f}")
