"""Run folders with planted predictions, as a finished run leaves them."""

import csv
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from onsight.models.file import ModelFile, save_model
from onsight.models.preprocessing import Preprocessing

FORMAT = {"height": 12, "width": 12, "channels": 1, "fit": "stretch", "pixel_limit": 64_000_000}
FORMAT |= {"background": [255, 255, 255], "mean": [0.5], "std": [0.5], "precision": "fp32"}


class Said(NamedTuple):
    """A row of predictions.csv."""

    path: str
    label: str
    predicted: str
    probability: float = 0.9
    digest: str | None = None
    fold: int | None = None


def key(digest):
    """The image key of a digest in hexadecimal, as a model file holds it."""
    return int.from_bytes(bytes.fromhex(digest), "big", signed=True)


def digest_of(number):
    """A digest that an image with this number might have; some are negative as keys."""
    return f"{(number * 0x9E3779B97F4A7C15) % 2**64:016x}"


def said(number, label, predicted, probability=0.9):
    """A prediction for the image with this number."""
    return Said(f"{label}/{number}.png", label, predicted, probability, digest_of(number))


def plant_run(folder, rows, *, seen=(), classes=("cat", "dog"), split="test", size=12, **config):
    """A finished run: its model file, predictions.csv and results.json."""
    digests = [] if any(row.digest is None for row in rows) else ["digest"]
    folds = [] if any(row.fold is None for row in rows) else ["fold"]
    names = ["path", "label", "predicted", "probability", *digests, *folds]
    folder.mkdir(parents=True)
    with open(folder / "predictions.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([getattr(row, name) for name in names] for row in rows)
    data = config.pop("data", str(folder.parent / "pets"))
    facts = {"seconds": 12.5, "epochs": 3, "parameters": 1000}
    (folder / "results.json").write_text(json.dumps(facts), encoding="utf-8")
    model = ModelFile(
        model="compact",
        classes=tuple(classes),
        preprocessing=Preprocessing.of(FORMAT | {"height": size, "width": size}),
        results={"split": split, "images": len(rows)},
        provenance={"data": data, "config": {"test_fraction": 0.1, "seed": 1, **config}},
        weights={"w": torch.zeros(1)},
        seen=np.array([key(digest) for digest in seen], np.int64),
    )
    save_model(folder / "model.safetensors", model)
    return Path(folder)


def plant_counts(folder, both, first, second, wrong):
    """Two runs, first and second, with these counts of right predictions."""
    right = [(True, True)] * both + [(True, False)] * first
    right += [(False, True)] * second + [(False, False)] * wrong
    columns = zip(*right, strict=True)
    return [
        plant_run(
            folder / name,
            [said(place, "cat", "cat" if good else "dog") for place, good in enumerate(column)],
            seed=number,
        )
        for number, (name, column) in enumerate(zip(("first", "second"), columns, strict=True))
    ]
