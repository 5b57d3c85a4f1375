"""How often does the interval from cross-validation contain the accuracy on 10,000 new images?

    python benchmarks/folds_coverage.py --draws 20 --images 300

Each draw takes that many training images of Fashion-MNIST and trains on them with --folds 5. It
then evaluates the final model on the 10,000 test images, which were not used for training. The last
line of output is JSON.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import onsight
from onsight.data.sources.idx import read_idx
from onsight.data.sources.source import Source
from onsight.report.console import SilentReporter

QUIET = SilentReporter()


def write_images(source: Source, rows: Iterable[int], folder: Path) -> None:
    """The given rows of a source as PNGs in class folders, without a split."""
    for row in rows:
        name = source.index.classes[source.index.labels[row]]
        (folder / name).mkdir(parents=True, exist_ok=True)
        pixels = np.asarray(source.read(int(row)))
        Image.fromarray(pixels.reshape(pixels.shape[:2])).save(folder / name / f"{row}.png")


def draw(source: Source, images: int, seed: int, folder: Path) -> None:
    """Write training images, drawn without replacement."""
    train = np.flatnonzero(source.index.splits == 1)
    rows = np.random.default_rng(seed).choice(train, images, replace=False)
    write_images(source, rows, folder)


def measure(
    source: Source, test: Path, options: argparse.Namespace, seed: int, folder: Path
) -> dict[str, Any]:
    draw(source, options.images, seed, folder / "data")
    fields: dict[str, Any] = {
        "folds": options.folds,
        "epochs": options.epochs,
        "batch_size": options.batch_size,
    }
    run = onsight.train(folder / "data", out=folder / "run", reporter=QUIET, seed=seed, **fields)
    truth = onsight.evaluate(run.path, test)["accuracy"]
    low, high = run.results["accuracy_low"], run.results["accuracy_high"]
    assert truth is not None and low is not None and high is not None  # noqa: PT018
    return {
        "seed": seed,
        "folds": run.results["accuracy"],
        "low": low,
        "high": high,
        "test": truth,
        "covered": low <= truth <= high,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--folds", default="5")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args(arguments)
    source = read_idx(Path(options.data))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        test = Path(name) / "test"
        test.mkdir()
        for path in Path(options.data).glob("t10k*"):
            shutil.copy(path, test)
        for seed in range(options.first, options.first + options.draws):
            rows.append(measure(source, test, options, seed, Path(name) / str(seed)))
            print(json.dumps(rows[-1]), file=sys.stderr)
    gaps = [row["test"] - row["folds"] for row in rows]
    summary = {
        "draws": len(rows),
        "images": options.images,
        "folds": options.folds,
        "covered": sum(row["covered"] for row in rows),
        "mean_gap": statistics.mean(gaps),
        "mean_folds": statistics.mean(row["folds"] for row in rows),
        "mean_test": statistics.mean(row["test"] for row in rows),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
