"""A model file ready to predict: the same decoding, preprocessing and forward as in training."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from onsight.data.pillow_pixels import Pixels
from onsight.errors import ModelError, PictureError
from onsight.hardware.cores import usable_cores
from onsight.inference.pictures import Picture, is_one, name_of, read_picture, several
from onsight.inference.runner import Runner
from onsight.report.notebook import facts_table

if TYPE_CHECKING:
    from torch import nn

    from onsight.inference.torch_runner import TorchRunner
    from onsight.models.classifier import Classifier
    from onsight.models.file import ModelFile

Item = TypeVar("Item")


@dataclass(frozen=True)
class Prediction:
    """What the model predicts for one input, or why it cannot.

    probabilities: float32 (K,) in the order of the classes, None if the picture cannot be used;
    features: float32 (D,), what the network's last layer was given, if they were asked for.
    """

    path: str
    predicted: str | None
    probability: float | None
    problem: str | None
    probabilities: NDArray[np.float32] | None
    features: NDArray[np.float32] | None = None


class Predictor:
    """A trained model that predicts as scikit-learn's do; made by `onsight.load`."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.classes = runner.classes
        self.format = runner.format

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {fact}" for name, fact in self.runner.facts.items())
        return f"<Predictor {facts}>"

    def _repr_html_(self) -> str:
        return facts_table("Predictor", self.runner.facts)

    @property
    def file(self) -> "ModelFile":
        """The model file. Raises ModelError for an exported model."""
        return self._in_torch().file

    @property
    def classifier(self) -> "Classifier":
        """The network with its preprocessing. Raises ModelError for an exported model."""
        return self._in_torch().classifier

    @overload
    def predict(self, pictures: Picture) -> str: ...  # type: ignore[overload-overlap]

    @overload
    def predict(self, pictures: Iterable[Picture]) -> list[str]: ...

    def predict(self, pictures: Picture | Iterable[Picture]) -> str | list[str]:
        """The class of a picture, or of each of several in a list.

        A picture is a path, the bytes of a file, a Pillow image, or an array or tensor of uint8
        or of floats from 0 to 1, (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels; several
        are any iterable of these or an array (n, H, W, C). As with NumPy's functions, one picture
        gives one label and several give a list. Raises PictureError for a picture that cannot be
        used, which `predictions` lists.
        """
        winners = self.predict_proba(pictures).argmax(axis=-1)
        if winners.ndim == 0:
            return self.classes[int(winners)]
        return [self.classes[winner] for winner in winners]

    def predict_proba(self, pictures: Picture | Iterable[Picture]) -> NDArray[np.float32]:
        """Probabilities (n, K) in the order of `classes`, or (K,) of one picture alone.

        Takes what `predict` takes. Raises PictureError.
        """
        rows = self._rows(self.predictions(pictures), "probabilities")
        if is_one(pictures):
            return rows[0]
        return np.stack(rows) if rows else np.zeros((0, len(self.classes)), np.float32)

    def embed(self, pictures: Picture | Iterable[Picture]) -> NDArray[np.float32]:
        """Features (n, D), what the network's last layer is given, or (D,) of one picture alone.

        Alike pictures have alike features. Takes what `predict` takes. Raises PictureError, and
        ModelError for a network that does not end in a linear layer.
        """
        rows = self._rows(self.predictions(pictures, features=True), "features")
        if is_one(pictures):
            return rows[0]
        return np.stack(rows) if rows else self._embed_nothing()

    def predictions(
        self, pictures: Picture | Iterable[Picture], features: bool = False
    ) -> Iterator[Prediction]:
        """One Prediction per input, in order; for one that cannot be used, it says why.

        features: give those too. Raises ModelError if the network has none.
        """
        with ThreadPoolExecutor(usable_cores(), thread_name_prefix="decode") as pool:
            for batch in _batches(several(pictures), self.runner.at_once):
                yield from self._predict_batch(
                    batch, list(pool.map(self._prepare, batch)), features
                )

    def _rows(self, predictions: Iterable[Prediction], name: str) -> list[NDArray[np.float32]]:
        """A column of predictions. Raises PictureError for a picture that cannot be used."""
        rows = []
        for prediction in predictions:
            if prediction.problem is not None:
                raise PictureError(f"{prediction.path}: {prediction.problem}")
            rows.append(getattr(prediction, name))
        return rows

    def _prepare(self, picture: Picture) -> Pixels | PictureError:
        try:
            return read_picture(picture, self.format)
        except PictureError as error:
            return error

    def _predict_batch(
        self, batch: Sequence[Picture], prepared: Sequence[Pixels | PictureError], features: bool
    ) -> Iterator[Prediction]:
        usable = [pixels for pixels in prepared if not isinstance(pixels, PictureError)]
        columns = self.runner.run(np.stack(usable), features) if usable else ()
        rows = zip(*(column for column in columns if column is not None), strict=True)
        for picture, pixels in zip(batch, prepared, strict=True):
            if isinstance(pixels, PictureError):
                yield Prediction(name_of(picture), None, None, str(pixels), None)
                continue
            row, *found = next(rows)
            winner = int(row.argmax())
            probability = float(row[winner])
            yield Prediction(name_of(picture), self.classes[winner], probability, None, row, *found)

    def _embed_nothing(self) -> NDArray[np.float32]:
        """The features (0, D) of no pictures."""
        size = self.format
        one = np.zeros((1, size.height, size.width, size.channels), np.uint8)
        features = self.runner.run(one, features=True).features
        if features is None:
            raise ModelError("the model gives no features")
        return features[:0]

    def _in_torch(self) -> "TorchRunner":
        from onsight.inference.torch_runner import TorchRunner

        if not isinstance(self.runner, TorchRunner):
            raise ModelError(
                "an exported model only predicts: for this, name the run folder or model file "
                "that it was exported from"
            )
        return self.runner


def load(
    model: str | Path, *, device: str = "auto", module: "nn.Module | str | None" = None
) -> Predictor:
    """Load a run folder or model file for prediction.

    module: the network, or package.module:callable that makes it, for a model of your own: a
    model file never names code to run. Raises ModelError, DeviceError.
    """
    from onsight.inference.torch_runner import load_runner

    return Predictor(load_runner(model, device, module))


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
