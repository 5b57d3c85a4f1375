"""How accurate is Ultralytics' classifier after some seconds?

    python benchmarks/peers/auto_ultralytics.py TRAIN TEST --seconds 60

YOLO11n with Ultralytics' own settings, time limit and prediction. It is trained from scratch: its
published weights are not in a package, and benchmarks download nothing.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from auto_shared import SLACK, TIMED_IMAGES, make_parser, read_images, report, seconds_left, start

NETWORK = "yolo11n-cls.yaml"
OVERHEAD_SECONDS = 3.0  # of YOLO.train: reading the folders, and an evaluation at the end


def link_dataset(train: Path, folder: Path) -> None:
    """Lay out a dataset of links, because Ultralytics writes files beside the folders.

    It evaluates after training on images that nothing else uses here: one per class.
    """
    (folder / "train").symlink_to(train.resolve())
    for place in train.resolve().iterdir():
        image = min(place.iterdir())
        link = folder / "val" / place.name / image.name
        link.parent.mkdir(parents=True)
        link.symlink_to(image)


def predict(model: Any, paths: Sequence[Path], options: argparse.Namespace) -> list[str]:
    """The predicted classes."""
    found: dict[Path, str] = {}  # by path, because YOLO.predict sorts the paths
    for first in range(0, len(paths), options.batch_size):
        batch = [str(path) for path in paths[first : first + options.batch_size]]
        for result in model.predict(batch, imgsz=options.size, device="cpu", verbose=False):
            found[Path(result.path)] = result.names[result.probs.top1]
    return [found[path] for path in paths]


def train(data: Path, options: argparse.Namespace, paths: Sequence[Path]) -> list[str]:
    """Train until the remaining time is needed to predict the classes of these images."""
    from ultralytics import YOLO  # after main() has set what it reads on import

    sample = paths[:: max(1, len(paths) // TIMED_IMAGES)]
    untrained = YOLO(NETWORK)
    predict(untrained, sample[:1], options)  # the first call is slower
    begun = time.perf_counter()
    predict(untrained, sample, options)
    seconds = SLACK * (time.perf_counter() - begun) / len(sample) * len(paths)
    model = YOLO(NETWORK)
    model.train(
        data=str(data),
        time=max(1.0, seconds_left(options, seconds + OVERHEAD_SECONDS)) / 3600,
        imgsz=options.size,
        batch=options.batch_size,
        workers=options.workers,
        seed=options.seed,
        device="cpu",
        val=False,
        plots=False,
        project=str(data / "runs"),
    )
    return predict(model, paths, options)


def main() -> None:
    options = start(make_parser(__doc__))
    _, test = read_images(options, None)
    with tempfile.TemporaryDirectory() as made:
        os.environ |= {"YOLO_CONFIG_DIR": made, "YOLO_OFFLINE": "true"}
        link_dataset(options.train, Path(made))
        predicted = train(Path(made), options, test.paths)
    actual = [path.parent.name for path in test.paths]
    report([name == label for name, label in zip(predicted, actual, strict=True)], test)


if __name__ == "__main__":
    main()
