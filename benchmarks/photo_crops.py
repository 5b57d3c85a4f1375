"""How fast does a folder of JPEGs give 224x224 random-resized crops, and how close to the limit?

    python benchmarks/photo_crops.py [--full] [--rounds 5] [--least-area 0.35] [--data PetImages]

Batches of 64 crops, mirrored half of the time, as normalised float tensors; JPEGs of about
500x375. Peers: torch's DataLoader over torchvision's ImageFolder, with PIL and the classic
transforms, and with decode_image and transforms.v2, each with the number of workers that was
fastest in this run. The limit decodes at the smallest scale that the crop allows, cuts and resizes,
in as many threads as there are cores, and keeps nothing. --least-area 0.08 is usual for ImageNet.
Every contender runs for --seconds after its first batches; --full uses 25,000 pictures.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
import simplejpeg
import torch
from decode_photos import WALLPAPERS, photo_folder
from harness import circumstances, interleave, paired, table, write_section
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from onsight.config import make_config
from onsight.hardware.cores import usable_cores

SIDE = 224
BATCH_SIZE = 64
CHUNK = 16
WARM_UP_BATCHES = 3
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ASPECTS = (3 / 4, 4 / 3)
OURS = "Onsight, streamed"

# An endless supply; each item is a number of crops.
Supply = Iterator[int]


class Box(NamedTuple):
    """A crop's place in a picture, in pixels."""

    top: int
    left: int
    height: int
    width: int


def onsight_batches(folder: Path, least_area: float) -> Supply:
    """The epochs of a run with --residency stream, augmented and normalised as in training."""
    from onsight.data.dataset import open_dataset
    from onsight.data.index import TRAIN
    from onsight.data.loader import Loader
    from onsight.data.normalization import Normalization
    from onsight.data.sources.find import find_source
    from onsight.data.stream import Stream
    from onsight.hardware.allocator import keep_freed_memory
    from onsight.training.build import make_augmentation

    keep_freed_memory()  # as every run does
    config = make_config(
        {"residency": "stream", "image_size": str(SIDE), "crop_area": least_area, "translate": 0}
    )
    source = find_source(str(folder))
    dataset = open_dataset(source, config, (SIDE, SIDE), None, usable_cores())
    assert isinstance(dataset.pictures, Stream)
    loader = Loader(dataset.pictures, dataset.ids(TRAIN), BATCH_SIZE, torch.device("cpu"))
    augmentation, normalization = make_augmentation(config, dataset), Normalization(MEAN, STD)
    for epoch in range(2**31):
        for batch in loader.epoch(config.seed, epoch):
            numbers = augmentation.draw(config.seed, epoch, batch.ids)
            inputs, _ = augmentation.apply(batch, numbers, normalization, len(dataset.classes))
            yield len(inputs)


def classic(folder: Path, least_area: float) -> datasets.ImageFolder:
    steps = [
        transforms.RandomResizedCrop(SIDE, (least_area, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
    return datasets.ImageFolder(folder, transforms.Compose(steps))


def read_tensor(path: str) -> Tensor:
    return decode_image(path, ImageReadMode.RGB)


def modern(folder: Path, least_area: float) -> datasets.ImageFolder:
    """Tensors throughout: the crop is resized as bytes, and only 224x224 pixels become float."""
    steps = [
        v2.RandomResizedCrop(SIDE, (least_area, 1.0), antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
    return datasets.ImageFolder(folder, v2.Compose(steps), loader=read_tensor)


def peer_batches(dataset: datasets.ImageFolder, workers: int) -> Supply:
    loader = DataLoader(
        dataset,
        BATCH_SIZE,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
    )
    for inputs, _ in chain.from_iterable(repeat(loader)):
        yield len(inputs)


def draw_box(generator: np.random.Generator, height: int, width: int, least_area: float) -> Box:
    """A random-resized crop as torchvision draws it."""
    for _ in range(10):
        area = height * width * generator.uniform(least_area, 1.0)
        ratio = math.exp(generator.uniform(*map(math.log, ASPECTS)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if wide <= width and high <= height:
            top, left = generator.integers(height - high + 1), generator.integers(width - wide + 1)
            return Box(int(top), int(left), high, wide)
    side = min(height, width)
    return Box((height - side) // 2, (width - side) // 2, side, side)


def decode_for(data: bytes, size: tuple[int, int], box: Box) -> np.ndarray:
    """The whole picture, at the smallest scale at which the crop still has SIDE pixels a side."""
    shrink = min(1.0, SIDE / min(box.height, box.width))
    least_height, least_width = (math.ceil(side * shrink) for side in size)
    return simplejpeg.decode_jpeg(
        data,
        "RGB",
        min_height=least_height,
        min_width=least_width,
        min_factor=2.0,  # scales like 3/4 take longer than none
    )


def scaled(box: Box, size: tuple[int, int], pixels: np.ndarray) -> Box:
    """The box in the pixels of a picture that was decoded smaller."""
    down, right = pixels.shape[0] / size[0], pixels.shape[1] / size[1]
    high, wide = max(1, int(box.height * down)), max(1, int(box.width * right))
    return Box(int(box.top * down), int(box.left * right), high, wide)


def resize_pillow(pixels: np.ndarray, box: Box) -> None:
    corners = (box.left, box.top, box.left + box.width, box.top + box.height)
    Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BILINEAR, corners)


def resize_torch(pixels: np.ndarray, box: Box) -> None:
    rows = slice(box.top, box.top + box.height)
    cut = torch.from_numpy(pixels[rows, box.left : box.left + box.width]).permute(2, 0, 1)
    torch.nn.functional.interpolate(cut[None], (SIDE, SIDE), mode="bilinear", antialias=True)


def limit_batches(
    folder: Path, least_area: float, resize: Callable[[np.ndarray, Box], None]
) -> Supply:
    """Decoding, cutting and resizing alone, from bytes in memory; nothing is kept."""
    contents = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]
    generators = np.random.default_rng(0)

    def some(numbers: np.ndarray) -> int:
        generator = np.random.default_rng(int(numbers[0]))
        for number in numbers:
            data = contents[number]
            size = simplejpeg.decode_jpeg_header(data)[:2]
            box = draw_box(generator, *size, least_area)
            pixels = decode_for(data, size, box)
            resize(pixels, scaled(box, size, pixels))
        return len(numbers)

    with ThreadPoolExecutor(usable_cores()) as pool:
        while True:
            order = generators.permutation(len(contents))
            chunks = [order[start : start + CHUNK] for start in range(0, len(order), CHUNK)]
            # A few hundred at a time, so that stopping early wastes little.
            for start in range(0, len(chunks), 32):
                yield sum(pool.map(some, chunks[start : start + 32]))


def rate(make: Callable[[], Supply], seconds: float) -> float:
    """Crops per second after the first batches; starting workers is not counted."""
    supply = make()
    for _ in range(WARM_UP_BATCHES):
        next(supply)
    crops, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        crops += next(supply)
    elapsed = time.perf_counter() - begun
    supply.close()
    return crops / elapsed


def fastest(makers: dict[str, Callable[[], Supply]], seconds: float) -> tuple[str, str]:
    """The name of the fastest, and a note with the rates of all."""
    rates = {name: rate(make, seconds) for name, make in makers.items()}
    note = ", ".join(f"{name}: {found:,.0f}" for name, found in rates.items())
    return max(rates, key=rates.__getitem__), note


def families(folder: Path, least_area: float) -> dict[str, dict[str, Callable[[], Supply]]]:
    """The peers and the limit, each with every setting worth trying."""
    workers = sorted({0, 1, 2, usable_cores()})
    made: dict[str, dict[str, Callable[[], Supply]]] = {}
    for name, make in {"ImageFolder, PIL": classic, "ImageFolder, v2": modern}.items():
        dataset = make(folder, least_area)
        made[name] = {
            f"{number} workers": partial(peer_batches, dataset, number) for number in workers
        }
    made["limit"] = {
        "resized by Pillow": partial(limit_batches, folder, least_area, resize_pillow),
        "resized by torch": partial(limit_batches, folder, least_area, resize_torch),
    }
    return made


def tuned(folder: Path, least_area: float, seconds: float) -> tuple[dict, list[str]]:
    """Each family's fastest setting, and a line for each with the rates of its settings."""
    chosen, notes = {}, []
    for name, makers in families(folder, least_area).items():
        best, note = fastest(makers, seconds)
        chosen[f"{name}, {best}"] = makers[best]
        notes.append(f"{name}: {note} crops/s in the tuning round.")
    return chosen, notes


def show(rates: dict[str, list[float]], notes: list[str], least_area: float) -> None:
    rows = [
        [
            name,
            f"{statistics.median(found):,.0f}",
            "" if name == OURS else str(paired(rates[OURS], found)),
        ]
        for name, found in rates.items()
    ]
    lines = [
        f"## Photographs to crops of {SIDE}x{SIDE}",
        "",
        f"Area {least_area:g} to 1 of JPEGs of about 500x375, batches of {BATCH_SIZE}; "
        f"{circumstances('simplejpeg', 'pillow', 'numpy')}.",
        "",
        *table(["contender", "crops/s", "Onsight's rate / its rate"], rows),
        "",
        *notes,
    ]
    write_section(f"photo_crops {least_area:g}", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--least-area", type=float, default=0.35)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--files", type=int, default=0, help="another number of pictures")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--wallpapers", type=Path, default=WALLPAPERS)
    options = parser.parse_args()
    # All cores decode: a second thread that computes would only be in the way, for every contender.
    torch.set_num_threads(1)
    count = options.files or (25_000 if options.full else 5_000)
    folder = photo_folder(count, options.data, options.wallpapers)
    makers, notes = tuned(folder, options.least_area, options.seconds / 2)
    makers = {OURS: partial(onsight_batches, folder, options.least_area), **makers}
    works = {name: partial(rate, make, options.seconds) for name, make in makers.items()}
    show(interleave(works, options.rounds, warm_up=False), notes, options.least_area)


if __name__ == "__main__":
    main()
