"""Which out-of-distribution score is best, and does its threshold flag as many images as intended?

Two questions, for two kinds of models and fourteen kinds of out-of-distribution images: which score
has the highest AUROC? How many other images does a threshold set on held-out images flag? The
command takes about ten minutes on two cores:

    python benchmarks/out_of_distribution.py FASHION_FOLDER CLIP_ART_FOLDER CACHE

FASHION_FOLDER holds the four files of Fashion-MNIST, CLIP_ART_FOLDER is made by `clip_art.py`.
Models and their outputs are kept in CACHE. Needs scikit-learn and onsight[pretrained].
"""

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from harness import circumstances, table, write_section
from image_files import Array, read_idx
from sklearn.metrics import roc_auc_score
from torch import Tensor

import onsight
from onsight.evaluation.out_of_distribution import choose_detector
from onsight.evaluation.statistics import Z_95, wilson
from onsight.features.feature_pass import logits_and_features
from onsight.inference.images import read_image
from onsight.models.out_of_distribution import score
from onsight.report.console import SilentReporter

BANK = 1000
CHOSEN = f"nearest of {BANK:,}, 5th"
Outputs = tuple[Tensor, Tensor]  # logits (n, K) before any temperature, features (n, D)
Score = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """A model and its outputs: for images by part, and for out-of-distribution ones by kind."""

    name: str
    train: Outputs
    labels: Tensor
    held_out: Outputs
    test: Outputs
    outliers: dict[str, Outputs]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("fashion", "clip_art", "cache"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--outliers", type=int, default=500, help="images per kind")
    parser.add_argument("--art", type=int, default=800, help="training images for the heads")
    given = parser.parse_args(arguments)
    train, test = (read_idx(given.fashion, part) for part in ("train", "t10k"))
    cases = [
        *fashion_cases(train, test, given),
        *art_cases(given, test[0]),
    ]
    lines = ["## Images unlike anything seen in training", "", circumstances("timm"), ""]
    lines += [*auroc_table(cases), "", *threshold_table(cases)]
    write_section("out_of_distribution", lines)


def fashion_cases(
    train: tuple[Array, Array], test: tuple[Array, Array], options: argparse.Namespace
) -> list[Case]:
    """28x28 grey: all classes against other kinds of images, and some against the left-out ones."""
    (images, labels), (tests, test_labels) = train, test
    count = options.outliers
    settings = {"model": "compact", "epochs": 3, "batch_size": 64}
    outliers: dict[str, list[Any]] = {
        **make_outliers((28, 28), count),
        "clip-art": list_files(options.clip_art / "test")[::4],
        "inverted": list(255 - tests[:count]),
        "rot90": list(np.rot90(tests[:count], axes=(1, 2)).copy()),
    }
    cases = []
    for left_out in ((), (8, 9), (0, 3), (1, 5)):
        name = "fashion-" + "".join(map(str, left_out)) if left_out else "fashion"
        ours, known = ~np.isin(labels, left_out), ~np.isin(test_labels, left_out)
        kept, kept_labels = images[ours], labels[ours]
        data = kept[:8000], kept_labels[:8000]
        parts = list(data[0]), list(kept[-2000:]), list(tests[known][:2000])
        others = {"new classes": list(tests[~known][:count])} if left_out else outliers
        cases.append(observe(options.cache, name, data, data[1], parts, others, settings))
    return cases


def art_cases(options: argparse.Namespace, fashion: Array) -> list[Case]:
    """Cases of 224x224 colour images, for a head on a pretrained network."""
    settings = {"model": "tf_efficientnet_lite0", "pretrained": True, "freeze": True}
    names = sorted(place.name for place in (options.clip_art / "train").iterdir())
    cases = []
    for name, classes in (("art", names), ("art-half", names[:8])):
        paths = list_files(options.clip_art / "train", classes)
        random.Random(0).shuffle(paths)
        fit, held_out = paths[: options.art], paths[options.art : options.art * 3 // 2]
        labels = [path.parent.name for path in fit]
        data = [str(path) for path in fit], labels
        parts = fit, held_out, list_files(options.clip_art / "test", classes)[::3]
        others: dict[str, Any] = {
            **make_outliers((224, 224, 3), options.outliers * 2 // 5),
            "fashion": list(fashion[:200]),
        }
        if classes != names:
            others = {"new classes": list_files(options.clip_art / "test", names[8:])[::3]}
        cases.append(observe(options.cache, name, data, labels, parts, others, settings))
    return cases


def list_files(folder: Path, classes: Sequence[str] = ()) -> list[Path]:
    """Images in the folders of these classes, by default of all."""
    paths = sorted(folder.rglob("*.png"))
    return [path for path in paths if not classes or path.parent.name in classes]


def make_outliers(shape: tuple[int, ...], count: int) -> dict[str, list[Array]]:
    """Uniform noise, normal noise, and images of one colour."""
    rng = np.random.default_rng(0)
    size = (count, *shape)
    colours: list[Any] = [rng.integers(0, 256, shape[2:], np.uint8) for _ in range(count)]
    if len(shape) == 2:
        colours = [np.uint8(number % 256) for number in range(count)]
    return {
        "uniform": list(rng.integers(0, 256, size).astype(np.uint8)),
        "gauss": list(np.clip(rng.normal(128, 40, size), 0, 255).astype(np.uint8)),
        "constant": [np.broadcast_to(colour, shape).copy() for colour in colours],
    }


def observe(
    cache: Path,
    name: str,
    data: Any,
    labels: Any,
    parts: tuple[Sequence[Any], Sequence[Any], Sequence[Any]],
    outliers: Mapping[str, Sequence[Any]],
    settings: dict[str, Any],
) -> Case:
    """Train a model unless it is in the cache, and compute its outputs for all images."""
    folder = cache / name
    if not (folder / "model.safetensors").exists():
        onsight.train(
            data,
            out=folder,
            reporter=SilentReporter(),
            test_fraction=0.0,
            folds="1",
            seed=0,
            threads=1,
            plan="default",
            **settings,
        )
    predictor = onsight.load(folder)
    train, held_out, test = parts
    number = {str(label): place for place, label in enumerate(predictor.classes)}
    return Case(
        name,
        compute_outputs(predictor, cache / f"{name}.bank.pt", train[:2000]),
        torch.tensor([number[str(label)] for label in labels[:2000]]),
        compute_outputs(predictor, cache / f"{name}.held.pt", held_out),
        compute_outputs(predictor, cache / f"{name}.test.pt", test),
        {
            kind: compute_outputs(
                predictor, cache / f"{name}.ood.{kind.replace(' ', '-')}.pt", images
            )
            for kind, images in outliers.items()
        },
    )


def compute_outputs(predictor: onsight.Predictor, kept: Path, images: Sequence[Any]) -> Outputs:
    """Logits and features of images, from the file `kept` if it exists."""
    if kept.exists():
        logits, features = torch.load(kept)
        return logits, features
    parts = []
    with ThreadPoolExecutor(2) as pool:
        for first in range(0, len(images), 64):
            some = pool.map(lambda image: read_image(image, predictor.format), images[first:][:64])
            batch = torch.from_numpy(np.stack(list(some)))
            logits, features = logits_and_features(predictor.classifier, batch)
            parts.append((logits.clone() * predictor.classifier.temperature, features.clone()))
    logits, features = (torch.cat(column) for column in zip(*parts, strict=True))
    torch.save((logits, features), kept)
    return logits, features


def make_scores(case: Case) -> dict[str, Score]:
    """Fit every candidate. A higher score means more likely out of distribution."""
    train = case.train[1]
    centre = train[:BANK].mean(0)
    rows = F.normalize(train, dim=1)
    within, overall = inverse_covariances(train, case)

    def mahalanobis(_: Tensor, features: Tensor) -> Tensor:
        means = class_means(train, case)
        return torch.stack([distance(features - center, within) for center in means], 1).amin(1)

    def nearest(count: int, which: int) -> Score:
        return lambda _, features: -nth(F.normalize(features, dim=1) @ rows[:count].T, which)

    def centred(_: Tensor, features: Tensor) -> Tensor:
        bank = F.normalize(train[:BANK] - centre, dim=1)
        return -nth(F.normalize(features - centre, dim=1) @ bank.T, 5)

    return {
        "1 - maximum softmax": lambda logits, _: -logits.softmax(1).amax(1),
        "energy": lambda logits, _: -logits.logsumexp(1),
        "- maximum logit": lambda logits, _: -logits.amax(1),
        "Mahalanobis": mahalanobis,
        "relative Mahalanobis": lambda logits, features: (
            mahalanobis(logits, features) - distance(features - train.mean(0), overall)
        ),
        "ViM": vim(case),
        f"centred, nearest of {BANK:,}, 5th": centred,
        "nearest of 500, 5th": nearest(500, 5),
        f"nearest of {BANK:,}, 1st": nearest(BANK, 1),
        CHOSEN: lambda _, features: score(features, rows[:BANK].half()),
        f"nearest of {BANK:,}, 10th": nearest(BANK, 10),
        "nearest of 2,000, 5th": nearest(2000, 5),
    }


def nth(similarities: Tensor, which: int) -> Tensor:
    return similarities.topk(which, dim=1).values[:, -1]


def class_means(train: Tensor, case: Case) -> Tensor:
    return torch.stack([train[case.labels == label].mean(0) for label in case.labels.unique()])


def inverse_covariances(train: Tensor, case: Case) -> tuple[Tensor, Tensor]:
    """The inverse covariances (D, D) within classes and overall, with a small ridge."""
    places = torch.searchsorted(case.labels.unique(), case.labels)
    offsets = train - class_means(train, case)[places], train - train.mean(0)
    within, overall = (inverse(offset.double()) for offset in offsets)
    return within, overall


def inverse(offsets: Tensor) -> Tensor:
    matrix = offsets.T @ offsets / len(offsets)
    ridge = 1e-3 * matrix.diagonal().mean() * torch.eye(len(matrix))
    inverted: Tensor = torch.linalg.inv(matrix + ridge)
    return inverted


def distance(offsets: Tensor, inverted: Tensor) -> Tensor:
    return torch.einsum("bd,de,be->b", offsets.double(), inverted, offsets.double())


def vim(case: Case) -> Score:
    """ViM (Wang et al., arXiv:2203.10807), scaled on held-out images.

    With few training images, those have no residual.
    """
    train = case.train[1]
    centre, width = train.mean(0), train.shape[1]
    rows = torch.linalg.svd((train - centre).double(), full_matrices=False).Vh
    basis = rows[: min(width // 2, 512, len(train) // 2)].T.float()

    def residual(features: Tensor) -> Tensor:
        offsets = features - centre
        norms: Tensor = torch.linalg.vector_norm(offsets - offsets @ basis @ basis.T, dim=1)
        return norms

    scale = case.held_out[0].amax(1).mean() / residual(case.held_out[1]).mean()
    return lambda logits, features: scale * residual(features) - logits.logsumexp(1)


def auroc_table(cases: list[Case]) -> list[str]:
    """A row for each score, a column for each kind; with an interval for Onsight's score."""
    columns = [(case, kind) for case in cases for kind in case.outliers]
    counts = [(len(case.test[0]), len(case.outliers[kind][0])) for case, kind in columns]
    header = ["AUROC", *(f"{case.name}: {kind}" for case, kind in columns), "mean", "lowest"]
    fitted = {case.name: make_scores(case) for case in cases}
    rows = []
    for name in fitted[cases[0].name]:
        found = [auroc(fitted[case.name][name], case, kind) for case, kind in columns]
        cells = [f"{area:.3f}" for area in found]
        if name == CHOSEN:
            cells = [
                f"**{area:.3f}** ± {margin(area, inliers, outliers):.3f}"
                for area, (inliers, outliers) in zip(found, counts, strict=True)
            ]
        rows.append([name, *cells, f"{mean(found):.3f}", f"{min(found):.3f}"])
    sizes = [f"{inliers:,} + {outliers:,}" for inliers, outliers in counts]
    return table(header, [*rows, ["n: test + out-of-distribution", *sizes, "", ""]])


def auroc(score_of: Score, case: Case, kind: str) -> float:
    inliers, outliers = score_of(*case.test), score_of(*case.outliers[kind])
    truth = [0] * len(inliers) + [1] * len(outliers)
    return float(roc_auc_score(truth, torch.cat([inliers, outliers]).double()))


def margin(auc: float, inliers: int, outliers: int) -> float:
    """Half the width of the 95% interval: Hanley and McNeil, Radiology 143 (1982)."""
    first, second = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    variance = (
        auc * (1 - auc)
        + (outliers - 1) * (first - auc * auc)
        + (inliers - 1) * (second - auc * auc)
    )
    return Z_95 * math.sqrt(max(0.0, variance) / (inliers * outliers))


def threshold_table(cases: list[Case]) -> list[str]:
    """What Onsight's threshold flags, of test images and of out-of-distribution ones."""
    rows = []
    for case in cases:
        stored = choose_detector(case.train[1][:BANK], case.held_out[1]).value
        assert stored, f"{case.name}: too few held-out images for a threshold"
        groups = {"test": case.test, **case.outliers}
        for kind, (_, features) in groups.items():
            flagged = int((score(features, stored.bank) > stored.threshold).sum())
            low, high = wilson(flagged, len(features))
            share = f"{flagged / len(features):.1%} ({low:.1%} to {high:.1%})"
            rows.append([case.name, kind, f"{len(features):,}", share])
    return table(["model", "images", "n", "flagged (95% interval)"], rows)


if __name__ == "__main__":
    main()
