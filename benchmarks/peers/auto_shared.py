"""What the peers of auto.py share: images, published weights, clock and report.

    python benchmarks/peers/auto_torchvision.py TRAIN TEST --seconds 60

TRAIN and TEST hold class folders. The seconds start with the process and include imports, reading,
and the evaluation on all test images. The last line printed is JSON.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms

from onsight.models.catalog import expected_input, make_model
from onsight_explain.python_process import seconds_since_start

NETWORK = "tf_efficientnet_lite0"
EXPECTED = expected_input(NETWORK)
assert EXPECTED
MEAN, DEVIATION = EXPECTED.scaling(3)
TIMED_IMAGES = 64
SLACK = 1.15  # on the evaluation's estimate
REPORT_SECONDS = 1.0  # including the end of the process

Sample = tuple[Tensor, int]  # a transformed image and its label
Transform = Callable[[Image.Image], Tensor]


def make_parser(description: str) -> argparse.ArgumentParser:
    """The arguments that every peer takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--size", type=int, default=128, help="the network's input, in pixels")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--fit", choices=("crop", "stretch"), default="stretch")
    keep = "keep decoded training images in memory, at most this large; 0: keep none"
    parser.add_argument("--keep-side", type=int, default=0, help=keep)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--bf16", type=int, choices=(0, 1), default=0)
    parser.add_argument("--channels-last", type=int, choices=(0, 1), default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def start(parser: argparse.ArgumentParser) -> argparse.Namespace:
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    return options


def open_image(path: Path) -> Image.Image:
    """Open an image in RGB, on white, because much clip art is invisible on black."""
    with Image.open(path) as image:
        if not image.has_transparency_data:
            return image.convert("RGB")
        base = Image.new("RGBA", image.size, "white")
        base.alpha_composite(image.convert("RGBA"))
    return base.convert("RGB")


class Images(Dataset[Sample]):
    """The images of class folders, as (transformed image, label) by number."""

    def __init__(self, folder: Path, transform: Transform | None) -> None:
        self.folder = folder
        self.classes = sorted(place.name for place in folder.iterdir())
        self.paths = [path for name in self.classes for path in sorted((folder / name).iterdir())]
        self.labels = [self.classes.index(path.parent.name) for path in self.paths]
        self.transform = transform
        self.kept: dict[int, Image.Image] = {}

    def keep(self, side: int, threads: int) -> None:
        """Decode every image now, and keep it with its longest side at most this many pixels."""

        def shrink(number: int) -> Image.Image:
            image = self.open(number)
            image.thumbnail((side, side))
            return image

        with ThreadPoolExecutor(threads) as pool:
            self.kept = dict(enumerate(pool.map(shrink, range(len(self)))))

    def open(self, number: int) -> Image.Image:
        return self.kept[number] if number in self.kept else open_image(self.paths[number])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Sample:
        assert self.transform
        return self.transform(self.open(number)), self.labels[number]


def read_images(
    options: argparse.Namespace, train_transform: Transform | None
) -> tuple[Images, Images]:
    """The images for training and for testing."""
    train = Images(options.train, train_transform)
    test = Images(options.test, evaluation_transform(options))
    assert train.classes == test.classes
    if options.keep_side:
        train.keep(options.keep_side, options.workers or 1)
    return train, test


def normalization() -> list[Callable[..., Tensor]]:
    return [transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]


def evaluation_transform(options: argparse.Namespace) -> transforms.Compose:
    """Resize to the whole image, or to the usual center crop of 7/8."""
    size = options.size
    crop = [transforms.Resize(round(size * 8 / 7)), transforms.CenterCrop(size)]
    stretch = [transforms.Resize((size, size))]
    return transforms.Compose([*(crop if options.fit == "crop" else stretch), *normalization()])


def make_loader(
    images: Images | Subset[Sample], options: argparse.Namespace, train: bool = False
) -> DataLoader[Any]:
    return DataLoader(
        images,
        options.batch_size,
        shuffle=train,
        drop_last=train and len(images) > options.batch_size,
        num_workers=options.workers,
        persistent_workers=train and options.workers > 0,
    )


def make_net(options: argparse.Namespace, classes: int) -> nn.Module:
    """EfficientNet-Lite0 with its published weights, for K classes."""
    net = make_model(NETWORK, (3, options.size, options.size), classes, pretrained=True)
    return net.to(memory_format=memory_format(options))


def memory_format(options: argparse.Namespace) -> torch.memory_format:
    return torch.channels_last if options.channels_last else torch.contiguous_format


def autocast(options: argparse.Namespace) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=bool(options.bf16))


def forward(net: nn.Module, images: Tensor, options: argparse.Namespace) -> Tensor:
    """Compute float32 outputs for images (B, 3, H, W)."""
    with autocast(options):
        outputs: Tensor = net(images.to(memory_format=memory_format(options)))
        return outputs.float()


@torch.inference_mode()
def find_correct(net: nn.Module, images: Images, options: argparse.Namespace) -> list[bool]:
    """Whether each image is classified correctly."""
    net.eval()
    return [
        correct
        for inputs, labels in make_loader(images, options)
        for correct in (forward(net, inputs, options).argmax(1) == labels).tolist()
    ]


@torch.inference_mode()
def evaluation_seconds(net: nn.Module, images: Images, options: argparse.Namespace) -> float:
    """Estimate the seconds of an evaluation on all images, by timing each stage on a few.

    Workers decode in parallel, but decoding and computing share the cores, so both times add up.
    """
    step = math.ceil(len(images) / TIMED_IMAGES)
    numbers = range(0, len(images), step)
    net.eval()
    begun = time.perf_counter()
    inputs = torch.stack([images[number][0] for number in numbers])
    decode_seconds = time.perf_counter() - begun
    forward(net, inputs[: options.batch_size], options)  # the first call is slower
    begun = time.perf_counter()
    for batch in inputs.split(options.batch_size):
        forward(net, batch, options)
    forward_seconds = time.perf_counter() - begun
    sample_seconds: float = decode_seconds / max(1, options.workers) + forward_seconds
    return SLACK * sample_seconds / len(numbers) * len(images)


def seconds_left(options: argparse.Namespace, reserved: float = 0.0) -> float:
    """Seconds until the budget ends, minus those reserved for later work and the report."""
    return float(options.seconds) - seconds_since_start() - reserved - REPORT_SECONDS


def report(correct: Sequence[bool], test: Images) -> None:
    """Print which test images were classified correctly, by path within the dataset."""
    paths = [path.relative_to(test.folder.parent).as_posix() for path in test.paths]
    print(json.dumps({"correct": dict(zip(paths, correct, strict=True))}))
