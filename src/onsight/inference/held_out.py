"""Labelled images, divided into those that a model was trained with and the others."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from onsight.data.index import TRAIN, UNSPLIT, Index, Problem
from onsight.data.pack import Pack, is_packed, open_pack
from onsight.data.packing import PackJob
from onsight.data.sources.find import find_recorded_source
from onsight.data.sources.source import Source
from onsight.data.split import find_leaks
from onsight.errors import DataError
from onsight.inference.predictor import Predictor
from onsight.models.file import image_keys
from onsight.report.console import Reporter
from onsight.text import joined
from onsight_explain.threads import usable_cores


@dataclass(frozen=True)
class HeldOutImages:
    """Labelled images whose classes a model has, and which of them it was not trained with."""

    pack: Pack  # all images, with the model's class numbers; -1 for classes that it does not have
    ids: Tensor  # int64 (n,): images to evaluate on, one of each group of copies
    excluded: int  # labelled images that are not among the ids
    seen: Tensor  # int64 (m,): images that the model was trained or selected with
    problems: list[Problem]


def open_held_out(
    predictor: Predictor, source: Source, cache: Path | None, reporter: Reporter
) -> HeldOutImages:
    """Decode DATA and exclude every image that the model was trained or selected with.

    Raises DataError if the model has none of its classes.
    """
    pack, unknown_classes = _with_model_classes(
        predictor, open_model_pack(source, predictor, cache, reporter)
    )
    seen = np.isin(image_keys(pack.digests), predictor.file.seen)
    is_labelled = pack.index.labels >= 0
    given = pack.index.splits
    splits = np.where(given == UNSPLIT, np.int8(TRAIN), given)
    copies = find_leaks(pack.digests, splits)  # as in training: only one of two identical images
    return HeldOutImages(
        pack,
        torch.from_numpy(np.flatnonzero(is_labelled & ~seen & ~copies)),
        int(((seen | copies) & is_labelled).sum()),
        torch.from_numpy(np.flatnonzero(seen)),
        [*source.problems, *pack.problems, *unknown_classes],
    )


def training_source(predictor: Predictor, model: Path, cache: Path | None) -> Source:
    """Return the DATA that the model was trained on, if its run folder records a place here.

    model: where the predictor was loaded from. Raises DataError.
    """
    if not ((model if model.is_dir() else model.parent) / "config.toml").is_file():
        raise DataError(
            f"{model} is not in a run folder, and data that only a model file names is not opened"
        )
    provenance = predictor.file.provenance
    return find_recorded_source(provenance.get("data"), provenance.get("config"), cache)


def open_model_pack(
    source: Source, predictor: Predictor, cache: Path | None, reporter: Reporter
) -> Pack:
    """Decode the images for a model, or reuse the pack that the model's training run cached."""
    job = PackJob(source, predictor.format, threads=usable_cores())
    training_job = replace(job, target=replace(job.target, channels=0))
    if is_packed(training_job, cache):
        pack = open_pack(training_job, cache)
        if pack.format == predictor.format:
            return pack
    with reporter.bar("decode", len(source.index)) as bar:
        return open_pack(replace(job, progress=bar.advance), cache)


def _with_model_classes(predictor: Predictor, pack: Pack) -> tuple[Pack, list[Problem]]:
    """Return the pack with the model's class numbers, and a problem per image of another class."""
    index = pack.index
    numbers = {name: number for number, name in enumerate(predictor.classes)}
    labels = np.array([numbers.get(name, -1) for name in index.classes], np.int32)[index.labels]
    problems = [
        Problem(
            index.locators[int(row)],
            "evaluate",
            f"its class '{index.classes[index.labels[row]]}' is not one of the model's",
        )
        for row in np.flatnonzero(labels < 0)
    ]
    if len(problems) == len(labels):
        raise DataError(
            f"none of the classes ({joined(index.classes)}) is one of the model's "
            f"({joined(predictor.classes)})"
        )
    mapped = Index(index.locators, labels, index.splits, predictor.classes)
    return replace(pack, index=mapped), problems
