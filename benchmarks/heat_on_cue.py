"""Does the heat lie on what tells the class?

    python benchmarks/heat_on_cue.py [--nets compact resnet18 ...] [--pictures 200]

The cue is a mark in one of four corners, drawn for each picture: a bar or a diagonal on a dark
square, a sixteenth of the picture. It alone tells the class, one of four; the rest is noise. Each
net is trained from scratch until its loss is below 0.01. The heat on the cue is the share inside
the square, the mean over n pictures. For "of two marks", another class's mark is in the opposite
corner; of the heat on both, it is the share on that of the class asked for. "untrained" is the
share on the cue before training.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from harness import circumstances, table, write_section
from torch import Tensor, nn

from onsight.data.normalization import Normalization
from onsight.heatmaps.heat import heat_maps
from onsight.models.catalog import make_model
from onsight.models.classifier import Classifier

CLASSES = 4
NOISE, FINE_NOISE = 180, 40  # brightness, of 255, of patches and of pixels

SMALL_VIT = {"patch_size": 6, "embed_dim": 96, "depth": 4, "num_heads": 3}


# (C, H, W), how it is made, learning rate.
NETS: dict[str, tuple[tuple[int, int, int], Callable[[tuple[int, int, int]], nn.Module], float]] = {
    "compact": ((1, 28, 28), lambda shape: own("compact", shape), 3e-3),
    "sprint": ((1, 28, 28), lambda shape: own("sprint", shape), 3e-3),
    "lenet": ((1, 28, 28), lambda shape: own("lenet", shape), 2e-3),
    "quick": ((1, 28, 28), lambda shape: own("quick", shape), 2e-3),
    "resnet18": ((3, 64, 64), lambda shape: own("resnet18", shape), 2e-3),
    "vit_tiny, class token": ((1, 48, 48), lambda shape: small_vit(), 2e-3),
    "vit_tiny, mean of tokens": (
        (1, 48, 48),
        lambda shape: small_vit(global_pool="avg", class_token=False),
        2e-3,
    ),
}
PICTURES, MOST_EPOCHS, BATCH = 1024, 30, 64


def own(name: str, shape: tuple[int, int, int]) -> nn.Module:
    return make_model(name, shape, CLASSES)


def small_vit(**options: object) -> nn.Module:
    """vit_tiny for 48x48 grey pictures in 8x8 patches, half as wide, a third as deep."""
    import timm

    facts = {"num_classes": CLASSES, "in_chans": 1, "img_size": 48}
    return timm.create_model("vit_tiny_patch16_224", **facts, **SMALL_VIT, **options)


def marks(side: int) -> Tensor:
    """Two bars and two diagonals: float (CLASSES, side, side), 0 and 1."""
    thick = max(1, side // 4)
    drawn = torch.zeros(CLASSES, side, side)
    start = (side - thick) // 2
    drawn[0, start : start + thick] = 1
    drawn[1, :, start : start + thick] = 1
    places = torch.arange(side)
    drawn[2] = (places[:, None] - places).abs() <= thick // 2
    drawn[3] = drawn[2].flip(1)
    return drawn


def noise(count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
    """Grey clouds with grain: float (n, C, H, W), 0 to 255."""
    channels, height, width = shape
    coarse = torch.rand(count, channels, height // 4, width // 4, generator=rng) * NOISE
    clouds = F.interpolate(coarse, (height, width), mode="bilinear")
    return clouds + torch.rand(count, *shape, generator=rng) * FINE_NOISE


def put(pictures: Tensor, classes: Tensor, corners: Tensor) -> Tensor:
    """Put each class's mark into a corner; where the squares are: bool (n, H, W)."""
    side = pictures.shape[2] // 4
    far = pictures.shape[2] - side
    drawn = marks(side)
    squares = torch.zeros(len(pictures), *pictures.shape[2:], dtype=torch.bool)
    for number, (kind, corner) in enumerate(zip(classes, corners.tolist(), strict=True)):
        top, left = far * (corner // 2), far * (corner % 2)
        square = pictures[number, :, top : top + side, left : left + side]
        square.mul_(0.3).add_(170 * drawn[kind]).clamp_(0, 255)
        squares[number, top : top + side, left : left + side] = True
    return squares


def planted(count: int, shape: tuple[int, int, int], seed: int, two: bool = False):
    """uint8 (n, H, W, C), classes (n,), and the squares of their marks, and of the others'."""
    rng = torch.Generator().manual_seed(seed)
    pictures = noise(count, shape, rng)
    classes = torch.randint(CLASSES, (count,), generator=rng)
    corners = torch.randint(4, (count,), generator=rng)
    squares = put(pictures, classes, corners)
    others = torch.zeros_like(squares)
    if two:
        shift = torch.randint(1, CLASSES, (count,), generator=rng)
        others = put(pictures, (classes + shift) % CLASSES, 3 - corners)
    return pictures.byte().permute(0, 2, 3, 1).contiguous(), classes, squares, others


def learn(classifier: Classifier, shape: tuple[int, int, int], rate: float) -> float:
    """Train until an epoch's loss is below 0.01; the accuracy on 200 new pictures."""
    net = classifier.net.train()
    images, classes, *_ = planted(PICTURES, shape, seed=1)
    inputs = classifier.normalization.apply(images).contiguous()
    steps = MOST_EPOCHS * (PICTURES // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(MOST_EPOCHS):
        losses = []
        for rows in torch.randperm(PICTURES).split(BATCH):
            loss = F.cross_entropy(net(inputs[rows]), classes[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        if np.mean(losses) < 0.01:
            break
    images, classes, *_ = planted(200, shape, seed=2)
    return float((classifier(images).argmax(1) == classes).float().mean())


def share(heat: np.ndarray, inside: Tensor, of: Tensor | None = None) -> float:
    """The mean share of heat (n, H, W) inside, of all or of what is inside another area."""
    whole = heat if of is None else heat * of.numpy()
    sums = whole.sum((1, 2))
    told = sums > 0
    return float(((heat * inside.numpy()).sum((1, 2))[told] / sums[told]).mean())


def row(name: str, pictures: int) -> list[str]:
    shape, make, rate = NETS[name]
    torch.manual_seed(0)
    plain = Normalization((0.4,) * shape[0], (0.2,) * shape[0])
    classifier = Classifier(make(shape), plain, "fp32", torch.device("cpu"))
    images, classes, squares, _ = planted(pictures, shape, seed=3)
    untrained = share(heat_maps(classifier, images, classes), squares)
    accuracy = learn(classifier, shape, rate)
    begun = time.perf_counter()
    heat = heat_maps(classifier, images, classes)
    milliseconds = 1000 * (time.perf_counter() - begun) / pictures
    on_cue = [share(one[None], square[None]) for one, square in zip(heat, squares, strict=True)]
    two, asked, own_squares, others = planted(pictures, shape, seed=4, two=True)
    told_apart = share(heat_maps(classifier, two, asked), own_squares, own_squares | others)
    area = float(squares.float().mean())
    figures = [accuracy, float(np.mean(on_cue)), np.mean(np.array(on_cue) >= 0.8), told_apart]
    shares = [f"{value:.1%}" for value in (*figures, untrained, area)]
    size = "x".join(map(str, shape[1:]))
    return [name, size, str(pictures), *shares, f"{milliseconds:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--pictures", type=int, default=200)
    given = parser.parse_args()
    rows = []
    for name in given.nets:
        rows.append(row(name, given.pictures))
        print(*rows[-1], sep="  ", flush=True)
    head = ["net", "pixels", "n", "accuracy", "heat on the cue", "pictures with 80% on it"]
    head += ["of two marks", "untrained", "area of the cue", "ms a picture"]
    lines = ["## Heat on a planted cue", "", circumstances("captum", "timm"), ""]
    write_section("heat on cue", [*lines, *table(head, rows)])


if __name__ == "__main__":
    main()
