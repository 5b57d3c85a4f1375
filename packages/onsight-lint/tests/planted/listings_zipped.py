"""Pictures and masks of two folders, paired as the disk lists them."""

import os

from PIL import Image
from torch.utils.data import Dataset


class Pairs(Dataset):
    def __init__(self, pictures, masks):
        self.pictures, self.masks = pictures, masks
        # expect: rows-out-of-step
        self.pairs = list(zip(os.listdir(pictures), os.listdir(masks), strict=True))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        picture, mask = self.pairs[index]
        return (
            Image.open(os.path.join(self.pictures, picture)),
            Image.open(os.path.join(self.masks, mask)),
        )


# fixed: zip(sorted(os.listdir(pictures)), sorted(os.listdir(masks)), strict=True)
