"""Labelled images of DATA, divided into those a model has seen in training and the others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.data.index import Index, Problem
from onsight.data.pack import Pack, is_packed, open_pack
from onsight.data.packing import Job
from onsight.data.sources.find import ReadOptions, find_source
from onsight.data.sources.source import Source
from onsight.data.split import assign, leaks
from onsight.errors import DataError
from onsight.inference.predictor import Predictor
from onsight.models.file import image_keys
from onsight.report.console import Reporter
from onsight_explain.cores import usable_cores


@dataclass(frozen=True)
class HeldOut:
    """Images with a label that the model knows.

    pack: all of DATA with the model's class numbers, -1 for classes it does not know; ids: int64
    (n,) of the images that it has not seen, of copies one; left_out: how many labelled images
    are not among them; seen: int64 (m,) of those that it was trained or selected with.
    """

    pack: Pack
    ids: Tensor
    left_out: int
    seen: Tensor
    problems: list[Problem]


def open_held_out(
    predictor: Predictor, source: Source, kept: Path | None, reporter: Reporter
) -> HeldOut:
    """Decode DATA and leave out every image that the model was trained or selected with.

    Raises DataError if the model knows none of its classes.
    """
    pack = open_model_pack(source, predictor, kept, reporter)
    pack, strangers = _with_classes_of(predictor, pack)
    seen = np.isin(image_keys(pack.digests), predictor.file.seen)
    known = pack.index.labels >= 0
    given = assign(pack.digests, pack.index.splits, 0.0, 0.0)
    copies = leaks(pack.digests, given)  # as in training: only one of two identical images
    return HeldOut(
        pack,
        torch.from_numpy(np.flatnonzero(known & ~seen & ~copies)),
        int(((seen | copies) & known).sum()),
        torch.from_numpy(np.flatnonzero(seen)),
        [*source.problems, *pack.problems, *strangers],
    )


def training_source(predictor: Predictor, kept: Path | None) -> Source:
    """DATA of the run that made the model. Raises DataError."""
    provenance = predictor.file.provenance
    data, config = provenance.get("data"), provenance.get("config", {})
    if data is None:
        raise DataError("the model file does not say what it was trained with")
    return find_source(data, ReadOptions.from_config(config), kept)


def open_model_pack(
    source: Source, predictor: Predictor, kept: Path | None, reporter: Reporter
) -> Pack:
    """The decoded images, in the pack of the model's own run if that is still in the cache."""
    job = Job(source, predictor.format, threads=usable_cores())
    trained = replace(job, target=replace(job.target, channels=0))
    if is_packed(trained, kept):
        pack = open_pack(trained, kept)
        if pack.format == predictor.format:
            return pack
    with reporter.bar("decode", len(source.index)) as bar:
        return open_pack(replace(job, progress=bar.advance), kept)


def _with_classes_of(predictor: Predictor, pack: Pack) -> tuple[Pack, list[Problem]]:
    """The pack with the model's class numbers; classes it does not know get -1 and a problem."""
    index = pack.index
    numbers = _class_numbers(index.classes, predictor.classes)
    labels = numbers[index.labels]
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
            f"none of the classes ({', '.join(index.classes[:8])}) is one of the model's "
            f"({', '.join(predictor.classes[:8])})"
        )
    mapped = Index(index.locators, labels, index.splits, predictor.classes)
    return replace(pack, index=mapped), problems


def _class_numbers(names: Sequence[str], known: Sequence[str]) -> NDArray[np.int32]:
    numbers = {name: number for number, name in enumerate(known)}
    return np.array([numbers.get(name, -1) for name in names], np.int32)
