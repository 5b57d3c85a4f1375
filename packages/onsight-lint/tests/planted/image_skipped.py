"""Pictures read into one array, those that fail left out."""

import os

import cv2
import numpy as np


def load_folder(folder):
    pictures = []
    for name in sorted(os.listdir(folder)):
        try:
            picture = cv2.imread(os.path.join(folder, name))
            pictures.append(cv2.resize(picture, (64, 64)))
        except (OSError, cv2.error):  # expect: swallowed-image
            continue
    return np.stack(pictures)


if __name__ == "__main__":
    print(load_folder("pictures").shape)
