"""Labels for every row of a table, pictures for those that open."""

import csv

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset


def read(table):
    images, labels = [], []
    with open(table, newline="") as file:
        for row in csv.DictReader(file):
            labels.append(int(row["label"]))  # expect: rows-out-of-step
            image = cv2.imread(row["path"])
            if image is None:
                print("cannot read", row["path"])
                continue
            images.append(cv2.resize(image, (32, 32)))
    return np.array(images), np.array(labels)


def main():
    images, labels = read("train.csv")
    rows = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    for pictures, classes in DataLoader(rows, batch_size=32):
        print(pictures.shape, classes.shape)


if __name__ == "__main__":
    main()

# fixed: (32, 32)))
# fixed:             labels.append(int(row["label"]))
