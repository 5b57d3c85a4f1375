"""How accurate is scikit-learn's logistic regression on frozen features after some seconds?

    python benchmarks/peers/auto_sklearn.py TRAIN TEST --seconds 60

The twenty lines that many would write: the network without its last layer, applied once to each
image and to its mirror image; then a linear classifier whose C is chosen on a held-out part. The
test images come first, because all of them must be classified; then training images in random
order, as many as the time allows.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch
from auto_shared import (
    Images,
    Sample,
    evaluation_transform,
    forward,
    make_loader,
    make_net,
    make_parser,
    read_images,
    report,
    seconds_left,
    start,
)
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import Subset

STRENGTHS = [0.01, 0.001, 0.1]  # the most promising first; others are tried if there is time
HELD_OUT_SHARE = 0.2
MAX_ITERATIONS = 200

# Features (n, views, D) and labels (n,).
Features = tuple[np.ndarray, np.ndarray]


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--mirror", type=int, choices=(0, 1), default=1)
    parser.add_argument("--fit-share", type=float, default=0.2, help="of the time, for fitting")
    parser.add_argument("--strengths", type=float, nargs="+", default=STRENGTHS, help="values of C")
    return start(parser)


@torch.inference_mode()
def compute(
    net: nn.Module,
    images: Images | Subset[Sample],
    options: argparse.Namespace,
    until: float = 0.0,
) -> Features:
    """Compute features of the images, in order, until this much of the budget is left."""
    features, labels = [], []
    for inputs, targets in make_loader(images, options):
        views = [inputs, inputs.flip(3)] if options.mirror else [inputs]
        features.append(torch.stack([forward(net, view, options) for view in views], 1))
        labels.append(targets)
        if until and seconds_left(options) < until:
            break
    return torch.cat(features).numpy(), torch.cat(labels).numpy()


def fit(data: Features, strength: float) -> Pipeline:
    """Fit a classifier; every view counts as an image."""
    features, labels = data
    rows, views, _ = features.shape
    model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=MAX_ITERATIONS))
    return model.fit(features.reshape(rows * views, -1), np.repeat(labels, views))


def find_correct(model: Pipeline, data: Features) -> list[bool]:
    """Whether each image is classified correctly, by the mean probabilities of its views."""
    features, labels = data
    votes = sum(model.predict_proba(features[:, view]) for view in range(features.shape[1]))
    correct: list[bool] = (model.classes_[votes.argmax(1)] == labels).tolist()
    return correct


def choose_strength(data: Features, options: argparse.Namespace) -> float:
    """The C with the best accuracy on a held-out part, among those there is time to try."""
    numbers = np.arange(len(data[1]))
    fitted, held_out = train_test_split(
        numbers, test_size=HELD_OUT_SHARE, random_state=options.seed
    )
    right: dict[float, int] = {}
    for strength in options.strengths:
        begun = time.perf_counter()
        model = fit((data[0][fitted], data[1][fitted]), strength)
        right[strength] = sum(find_correct(model, (data[0][held_out], data[1][held_out])))
        # Leave enough time for the final fit, which takes longer.
        if seconds_left(options) < 3 * (time.perf_counter() - begun):
            break
    return max(right, key=right.__getitem__)


def shuffled(images: Images, seed: int) -> Subset[Sample]:
    order = np.random.default_rng(seed).permutation(len(images))
    return Subset(images, order.tolist())


def main() -> None:
    options = parse()
    images, test = read_images(options, evaluation_transform(options))
    net: Any = make_net(options, len(test.classes)).eval()
    net.reset_classifier(0)
    test_data = compute(net, test, options)
    until = options.fit_share * options.seconds
    data = compute(net, shuffled(images, options.seed), options, until)
    strength = options.strengths[0]
    if len(options.strengths) > 1:
        strength = choose_strength(data, options)
    report(find_correct(fit(data, strength), test_data), test)


if __name__ == "__main__":
    main()
