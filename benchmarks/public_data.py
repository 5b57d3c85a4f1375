"""Real data without access to a hub, in the layouts that public training scripts expect.

Fashion-MNIST as MNIST's raw files and as CIFAR's batches; crops of wallpapers as the folders of
ImageNet or Imagenette and as the flat one of the Oxford pets; and clip art as class folders. Where
a script asks the Hugging Face hub for pretrained models, it gets random weights, which train at the
same speed.
"""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from clip_art import CLIP_ART, make_clip_art
from image_files import WALLPAPERS, cifar_rows, finished_folder, link_class, read_idx
from wallpaper_crops import make_wallpaper_crops

PARTS = {"train": "train", "test": "val"}


def mnist(fashion: Path, folder: Path) -> None:
    """FOLDER/MNIST/raw, as torchvision's MNIST reads it."""

    def fill(target: Path) -> None:
        for path in fashion.glob("*.gz"):
            (target / path.stem).write_bytes(gzip.decompress(path.read_bytes()))

    finished_folder(folder / "MNIST" / "raw", fill)


def cifar(fashion: Path, folder: Path, fine: bool = False) -> None:
    """FOLDER/cifar-10-batches-py, or CIFAR-100's folder if fine; md5 sums differ from CIFAR's.

    50,000 images for training and 10,000 for testing, padded from 28x28 to 32x32.
    """
    train, test = read_idx(fashion, "train"), read_idx(fashion, "t10k")

    def fill_ten(target: Path) -> None:
        for number in range(5):
            part = slice(number * 10_000, (number + 1) * 10_000)
            path = target / f"data_batch_{number + 1}"
            write_batch(path, train[0][part], train[1][part], "labels")
        write_batch(target / "test_batch", *test, "labels")
        dump(target / "batches.meta", {"label_names": [str(label) for label in range(10)]})

    def fill_hundred(target: Path) -> None:
        write_batch(target / "train", train[0][:50_000], train[1][:50_000], "fine_labels")
        write_batch(target / "test", *test, "fine_labels")
        dump(target / "meta", {"fine_label_names": [str(label) for label in range(100)]})

    if fine:
        finished_folder(folder / "cifar-100-python", fill_hundred)
    else:
        finished_folder(folder / "cifar-10-batches-py", fill_ten)


def write_batch(path: Path, pixels: np.ndarray, labels: np.ndarray, key: str) -> None:
    """Write one of CIFAR's batch files: rows of 3x32x32 pixels, and a list of labels."""
    dump(path, {"data": cifar_rows(pixels), key: labels.tolist()})


def dump(path: Path, content: object) -> None:
    path.write_bytes(pickle.dumps(content))  # CIFAR's own format


def photos(sets: Path, folder: Path, classes: int | None = None) -> None:
    """FOLDER/train/CLASS and FOLDER/val/CLASS: JPEG files of 320x240, 60 and 20 per class."""
    crops = make_wallpaper_crops(WALLPAPERS, sets)
    link_parts(crops, folder, classes)


def drawings(sets: Path, folder: Path) -> None:
    """FOLDER/train/CLASS and FOLDER/val/CLASS: PNG files of at most 320 pixels a side."""
    link_parts(make_clip_art(CLIP_ART, sets, 320), folder)


def link_parts(source: Path, folder: Path, classes: int | None = None) -> None:
    """Link the classes of a folder with train and test as train and val, at most this many."""

    def fill(target: Path) -> None:
        for part, name in PARTS.items():
            for place in sorted((source / part).iterdir())[:classes]:
                link_class(place, target / name / place.name)

    finished_folder(folder, fill)


def pets(sets: Path, folder: Path) -> None:
    """FOLDER/CLASS_NUMBER.jpg, as in the images of the Oxford pets."""
    crops = make_wallpaper_crops(WALLPAPERS, sets)

    def fill(target: Path) -> None:
        for path in (crops / "train").rglob("*.jpg"):
            (target / f"{path.parent.name}_{path.stem}.jpg").symlink_to(path.resolve())

    finished_folder(folder, fill)


def small_vit(folder: Path) -> None:
    """A vision transformer of 6 layers for 128x128 pixels, with random weights."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    def fill(target: Path) -> None:
        config = ViTConfig(
            hidden_size=192,
            num_hidden_layers=6,
            num_attention_heads=3,
            intermediate_size=768,
            image_size=128,
        )
        ViTForImageClassification(config).save_pretrained(target)
        ViTImageProcessor(size={"height": 128, "width": 128}).save_pretrained(target)

    finished_folder(folder, fill)


def timm_weights(folder: Path, model: str) -> None:
    """FOLDER as a Hugging Face home whose cache holds random weights of one of timm's models."""
    import timm
    from safetensors.torch import save_file

    network = timm.create_model(model)
    config: Any = network.pretrained_cfg
    place = folder / "hub" / f"models--{config['hf_hub_id'].replace('/', '--')}"

    def fill(target: Path) -> None:
        snapshot = target / "snapshots" / "random"
        snapshot.mkdir(parents=True)
        (target / "refs").mkdir()
        (target / "refs" / "main").write_text("random")
        save_file(network.state_dict(), snapshot / "model.safetensors")
        content = {"architecture": model, "pretrained_cfg": config}
        (snapshot / "config.json").write_text(json.dumps(content))

    finished_folder(place, fill)
