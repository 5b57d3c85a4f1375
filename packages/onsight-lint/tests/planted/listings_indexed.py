"""A folder as the disk lists it beside the rows of a table."""

import os

import pandas as pd
import torch
from torchvision.io import read_image


class Birds(torch.utils.data.Dataset):
    def __init__(self, folder, table, transform=None):
        self.folder = folder
        # expect: rows-out-of-step
        self.files = [name for name in os.listdir(folder) if name.endswith(".jpg")]
        self.labels = pd.read_csv(table)["species"].tolist()
        self.transform = transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, idx):
        image = read_image(os.path.join(self.folder, self.files[idx]))
        label = self.labels[idx]
        return (self.transform(image) if self.transform else image), label
