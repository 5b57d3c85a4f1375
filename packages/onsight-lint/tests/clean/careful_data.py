"""Pictures and labels of a table, every row accounted for, and predictions in its order."""

import csv
import logging
import os
from pathlib import Path

import torch
from PIL import Image, UnidentifiedImageError
from torch.utils.data import DataLoader, Dataset
from torchvision import models, transforms

log = logging.getLogger(__name__)


class Table(Dataset):
    def __init__(self, folder, table, transform):
        self.folder, self.transform = Path(folder), transform
        self.files, self.labels, self.refused = [], [], []
        names = sorted(os.listdir(folder))
        with open(table, newline="") as file:
            labels = {row["name"]: int(row["label"]) for row in csv.DictReader(file)}
        for name in names:
            if name not in labels:
                log.warning("no label for %s", name)
                continue
            try:
                Image.open(self.folder / name).verify()
            except (OSError, UnidentifiedImageError) as error:
                self.refused.append((name, str(error)))
                continue
            self.files.append(name)
            self.labels.append(labels[name])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.folder / self.files[index]
        try:
            image = Image.open(path).convert("RGB")
        except OSError as error:
            raise RuntimeError(f"{path} cannot be read") from error
        return self.transform(image), self.labels[index]


def is_picture(path):
    try:
        Image.open(path).verify()
    except Exception:
        return False
    return True


class Masks(Dataset):
    def __init__(self, root):
        self.images = os.listdir(os.path.join(root, "images"))
        self.masks = [name.replace(".jpg", "_mask.png") for name in self.images]
        self.root = root

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = Image.open(os.path.join(self.root, "images", self.images[index]))
        mask = Image.open(os.path.join(self.root, "masks", self.masks[index]))
        return image, mask


@torch.inference_mode()
def predict(model, loader, device):
    model.eval()
    scores, labels = [], []
    for images, targets in loader:
        scores.append(model(images.to(device)).softmax(dim=1).cpu())
        labels.append(targets)
    return torch.cat(scores), torch.cat(labels)


def main():
    device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    tensors = transforms.Compose([transforms.Resize((224, 224)), transforms.ToTensor()])
    table = Table("pictures", "labels.csv", tensors)
    for name, reason in table.refused:
        print(f"refused: {name}: {reason}")
    loader = DataLoader(table, batch_size=32, shuffle=False, num_workers=2)
    model = models.convnext_tiny(num_classes=7).to(device)
    model.load_state_dict(torch.load("best.pt", map_location=device, weights_only=True))
    scores, labels = predict(model, loader, device)
    hits = (scores.argmax(1) == labels).float()
    print(f"accuracy {hits.mean().item():.2%} of {len(labels)}")
    for name, row in zip(table.files, scores.tolist(), strict=True):
        print(name, max(row))


if __name__ == "__main__":
    main()
