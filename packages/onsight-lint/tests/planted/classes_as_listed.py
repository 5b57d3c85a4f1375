"""Class numbers in the order in which the disk lists the folders."""

import os

from torchvision.io import read_image


def read_all(root):
    pictures, labels = [], []
    for label, folder in enumerate(os.listdir(root)):  # expect: rows-out-of-step
        for name in sorted(os.listdir(os.path.join(root, folder))):
            pictures.append(read_image(os.path.join(root, folder, name)))
            labels.append(label)
    return pictures, labels


if __name__ == "__main__":
    print(len(read_all("flowers")[0]))

# fixed: enumerate(sorted(os.listdir(root)))
