"""A model file ready to predict: the same decoding, preprocessing and forward as in training."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onsight.data.pillow_pixels import Pixels
from onsight.errors import PictureError
from onsight.evaluation.per_image import evaluation_batch
from onsight.evaluation.results import Results
from onsight.evaluation.unlike import scores_of, with_scores
from onsight.features.feature_pass import with_features
from onsight.hardware.cores import usable_cores
from onsight.hardware.devices import choose_device
from onsight.inference.pictures import Picture, is_one, name_of, read_picture, several
from onsight.models.classifier import Classifier
from onsight.models.file import ModelFile, build_model, load_model_file
from onsight.models.head import required_head
from onsight.models.memory_format import set_memory_format
from onsight.models.user import make_user_model
from onsight.report.console import headline
from onsight.report.notebook import facts_table
from onsight.words import listed

Item = TypeVar("Item")


@dataclass(frozen=True)
class Prediction:
    """What the model predicts for one input, or why it cannot.

    probabilities: float32 (K,) in the order of the classes, None if the picture cannot be used;
    unlike: whether it is unlike anything seen in training, None if the model cannot tell; score:
    how unlike, compared with the model's threshold; features: float32 (D,), what the network's last
    layer was given, if they were asked for.
    """

    path: str
    predicted: str | None
    probability: float | None
    problem: str | None
    probabilities: NDArray[np.float32] | None
    unlike: bool | None = None
    score: float | None = None
    features: NDArray[np.float32] | None = None


class Predictor:
    """A trained model that predicts as scikit-learn's do; made by `onsight.load`."""

    def __init__(self, file: ModelFile, device: torch.device, module: nn.Module | None) -> None:
        prepared = file.preprocessing
        self.file = file
        self.classes = file.classes
        self.format = prepared.format
        net = set_memory_format(build_model(file, module), prepared.input_shape, device)
        self.classifier = Classifier(
            net, prepared.normalization, prepared.precision, device, file.temperature, file.unlike
        )

    def __repr__(self) -> str:
        return f"<Predictor {', '.join(f'{name} {fact}' for name, fact in self._facts().items())}>"

    def _repr_html_(self) -> str:
        return facts_table("Predictor", self._facts())

    def _facts(self) -> dict[str, object]:
        size, results = self.format, cast(Results, self.file.results)
        colour = "grey" if size.channels == 1 else "colour"
        facts = {
            "model": self.file.model,
            "device": self.classifier.device,
            "input": f"{size.shown[0]}x{size.shown[1]}, {colour}",
            "classes": listed(self.classes),
        }
        return facts | ({"result": headline(results)} if "images" in results else {})

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
        wide = required_head(self.classifier.net).in_features
        return np.stack(rows) if rows else np.zeros((0, wide), np.float32)

    def predictions(
        self, pictures: Picture | Iterable[Picture], features: bool = False
    ) -> Iterator[Prediction]:
        """One Prediction per input, in order; for one that cannot be used, it says why.

        features: give those too. Raises ModelError if the network has none.
        """
        forward = self._forward_with_features if features else self._forward
        with ThreadPoolExecutor(usable_cores(), thread_name_prefix="decode") as pool:
            at_once = evaluation_batch(self.classifier.device, self.format.shown)
            for batch in _batches(several(pictures), at_once):
                yield from self._predict_batch(batch, list(pool.map(self._prepare, batch)), forward)

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
        self,
        batch: Sequence[Picture],
        prepared: Sequence[Pixels | PictureError],
        forward: Callable[[Tensor], Sequence[Tensor]],
    ) -> Iterator[Prediction]:
        usable = [pixels for pixels in prepared if not isinstance(pixels, PictureError)]
        columns = forward(torch.from_numpy(np.stack(usable))) if usable else ()
        rows = zip(*(column.cpu().numpy() for column in columns), strict=True)
        for picture, pixels in zip(batch, prepared, strict=True):
            if isinstance(pixels, PictureError):
                yield Prediction(name_of(picture), None, None, str(pixels), None)
                continue
            row, score, *features = next(rows)
            winner = int(row.argmax())
            known = name_of(picture), self.classes[winner], float(row[winner]), None, row
            yield Prediction(*known, *self._unlike(score), *features)

    def _unlike(self, score: np.float32) -> tuple[bool | None, float | None]:
        stored = self.file.unlike
        return (not score <= stored.threshold, float(score)) if stored else (None, None)

    def _forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities (B, K) and scores (B,) of pictures uint8 (B, H, W, C)."""
        logits, scores = with_scores(self.classifier, images)
        return logits.softmax(dim=1), scores

    def _forward_with_features(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities (B, K), scores (B,) and features (B, D)."""
        logits, features = with_features(self.classifier, images)
        return logits.softmax(dim=1), scores_of(self.classifier, features), features


def load(
    model: str | Path, *, device: str = "auto", module: nn.Module | str | None = None
) -> Predictor:
    """Load a run folder or model file for prediction.

    module: the network, or package.module:callable that makes it, for a model of your own: a
    model file never names code to run. Raises ModelError, DeviceError.
    """
    file = load_model_file(model)
    if isinstance(module, str):
        module = make_user_model(module, file.preprocessing.input_shape, len(file.classes))
    return Predictor(file, choose_device(device).value, module)


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
