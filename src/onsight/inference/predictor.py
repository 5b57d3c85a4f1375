"""A model file ready to predict: the same decoder, views and forward as in training."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from onsight.data.decode import Pixels
from onsight.data.packing import prepare_picture
from onsight.data.sources.read_file import read_regular_file
from onsight.errors import DataError, PictureError
from onsight.evaluation.per_image import BATCH_SIZE
from onsight.hardware.cores import usable_cores
from onsight.hardware.devices import choose_device
from onsight.models.classifier import Classifier
from onsight.models.file import ModelFile, build_model, load_model_file
from onsight.models.memory_format import set_memory_format
from onsight.models.user import make_user_model

Item = TypeVar("Item")
Picture = str | Path | bytes | Pixels


@dataclass(frozen=True)
class Prediction:
    """What the model says of one input, or why it can say nothing.

    probabilities: float32 (K,) in the order of the classes, None for an unusable picture.
    """

    path: str
    predicted: str | None
    probability: float | None
    problem: str | None
    probabilities: NDArray[np.float32] | None


class Predictor:
    """Predicts with a trained model, in scikit-learn's sense; made by `onsight.load`."""

    def __init__(self, file: ModelFile, device: torch.device, module: nn.Module | None) -> None:
        prepared = file.preprocessing
        self.file = file
        self.classes = file.classes
        self.format = prepared.format
        net = set_memory_format(build_model(file, module), prepared.input_shape, device)
        self.classifier = Classifier(net, prepared.normalization, prepared.precision, device)

    def predict(self, pictures: Iterable[Picture]) -> list[str]:
        """The class of each picture: a path, encoded bytes or pixels uint8 (H, W, C).

        Raises PictureError at a picture that cannot be used; `predictions` lists it instead.
        """
        winners = self.predict_proba(pictures).argmax(axis=1)
        return [self.classes[winner] for winner in winners]

    def predict_proba(self, pictures: Iterable[Picture]) -> NDArray[np.float32]:
        """Probabilities (n, K) in the order of `classes`. Raises PictureError."""
        rows = []
        for prediction in self.predictions(pictures):
            if prediction.probabilities is None:
                raise PictureError(f"{prediction.path}: {prediction.problem}")
            rows.append(prediction.probabilities)
        return np.stack(rows) if rows else np.zeros((0, len(self.classes)), np.float32)

    def predictions(self, pictures: Iterable[Picture]) -> Iterator[Prediction]:
        """One Prediction for every input, in order; an unusable one carries its reason."""
        if isinstance(pictures, (str, bytes, Path)):
            raise DataError("one picture was given where several are expected: [picture]")
        with ThreadPoolExecutor(usable_cores(), thread_name_prefix="decode") as pool:
            for batch in _batches(pictures, BATCH_SIZE):
                yield from self._predict_batch(batch, list(pool.map(self._prepare, batch)))

    def _prepare(self, picture: Picture) -> Pixels | PictureError:
        try:
            if isinstance(picture, (str, Path)):
                picture = read_regular_file(os.fspath(picture))
            return prepare_picture(picture, self.format)[1]
        except PictureError as error:
            return error

    def _predict_batch(
        self, batch: Sequence[Picture], prepared: Sequence[Pixels | PictureError]
    ) -> Iterator[Prediction]:
        usable = [pixels for pixels in prepared if not isinstance(pixels, PictureError)]
        rows = iter(self._probabilities(usable))
        for picture, pixels in zip(batch, prepared, strict=True):
            name = os.fspath(picture) if isinstance(picture, (str, Path)) else "(in memory)"
            if isinstance(pixels, PictureError):
                yield Prediction(name, None, None, str(pixels), None)
                continue
            row = next(rows)
            winner = int(row.argmax())
            yield Prediction(name, self.classes[winner], float(row[winner]), None, row)

    def _probabilities(self, pictures: Sequence[Pixels]) -> NDArray[np.float32]:
        if not pictures:
            return np.zeros((0, len(self.classes)), np.float32)
        logits = self.classifier(torch.from_numpy(np.stack(pictures)))
        rows: NDArray[np.float32] = logits.softmax(dim=1).cpu().numpy()
        return rows


def load(
    model: str | Path, *, device: str = "auto", module: nn.Module | str | None = None
) -> Predictor:
    """Load a run folder or model file for prediction.

    module: the network itself, or package.module:callable, for a model of one's own; a file
    never names code to run. Raises ModelError, DeviceError.
    """
    file = load_model_file(model)
    if isinstance(module, str):
        module = make_user_model(module, file.preprocessing.input_shape, len(file.classes))
    return Predictor(file, choose_device(device).value, module)


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
