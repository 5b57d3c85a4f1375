"""Transfer learning with a phase for training and one for validation in each epoch."""

import os
import time
from tempfile import TemporaryDirectory

import torch
import torch.nn as nn
import torch.optim as optim
from torch.optim import lr_scheduler
from torchvision import datasets, models, transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
data_transforms = {
    "train": transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    ),
    "val": transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    ),
}


def train_model(model, dataloaders, sizes, criterion, optimizer, scheduler, device, num_epochs=25):
    since = time.time()
    with TemporaryDirectory() as tempdir:
        best_path = os.path.join(tempdir, "best.pt")
        torch.save(model.state_dict(), best_path)
        best_acc = 0.0
        for epoch in range(num_epochs):
            print(f"Epoch {epoch}/{num_epochs - 1}")
            for phase in ["train", "val"]:
                if phase == "train":
                    model.train()
                else:
                    model.eval()
                running_loss = 0.0
                running_corrects = 0
                for inputs, labels in dataloaders[phase]:
                    inputs = inputs.to(device)
                    labels = labels.to(device)
                    optimizer.zero_grad()
                    with torch.set_grad_enabled(phase == "train"):
                        outputs = model(inputs)
                        _, preds = torch.max(outputs, 1)
                        loss = criterion(outputs, labels)
                        if phase == "train":
                            loss.backward()
                            optimizer.step()
                    running_loss += loss.item() * inputs.size(0)
                    running_corrects += torch.sum(preds == labels.data)
                if phase == "train":
                    scheduler.step()
                epoch_loss = running_loss / sizes[phase]
                epoch_acc = running_corrects.double() / sizes[phase]
                print(f"{phase} Loss: {epoch_loss:.4f} Acc: {epoch_acc:.4f}")
                if phase == "val" and epoch_acc > best_acc:
                    best_acc = epoch_acc
                    torch.save(model.state_dict(), best_path)
        print(f"{time.time() - since:.0f} s, best {best_acc:.4f}")
        model.load_state_dict(torch.load(best_path, map_location=device, weights_only=True))
    return model


def show_some(model, loader, class_names, device, num_images=6):
    was_training = model.training
    model.eval()
    shown = 0
    with torch.no_grad():
        for inputs, _labels in loader:
            outputs = model(inputs.to(device))
            for pred in outputs.argmax(1):
                print("predicted:", class_names[pred])
                shown += 1
                if shown == num_images:
                    model.train(mode=was_training)
                    return
    model.train(mode=was_training)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    root = "data/hymenoptera_data"
    image_datasets = {
        x: datasets.ImageFolder(os.path.join(root, x), data_transforms[x]) for x in ["train", "val"]
    }
    dataloaders = {
        x: torch.utils.data.DataLoader(image_datasets[x], batch_size=4, shuffle=True, num_workers=4)
        for x in ["train", "val"]
    }
    dataset_sizes = {x: len(image_datasets[x]) for x in ["train", "val"]}
    model_conv = models.resnet18(weights="IMAGENET1K_V1")
    for param in model_conv.parameters():
        param.requires_grad = False
    model_conv.fc = nn.Linear(model_conv.fc.in_features, 2)
    model_conv = model_conv.to(device)
    optimizer_conv = optim.SGD(model_conv.fc.parameters(), lr=0.001, momentum=0.9)
    exp_lr_scheduler = lr_scheduler.StepLR(optimizer_conv, step_size=7, gamma=0.1)
    criterion = nn.CrossEntropyLoss()
    model_conv = train_model(
        model_conv, dataloaders, dataset_sizes, criterion, optimizer_conv, exp_lr_scheduler, device
    )
    show_some(model_conv, dataloaders["val"], image_datasets["val"].classes, device)


if __name__ == "__main__":
    main()
