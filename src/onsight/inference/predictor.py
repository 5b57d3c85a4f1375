"""A model file ready to predict: the same decoding, preprocessing and forward as in training."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from onsight.data.pillow_pixels import Pixels
from onsight.errors import ImageError, ModelError
from onsight.inference.decode_ahead import Prepared, prepared_batches
from onsight.inference.images import ImageLike, is_one, name_of, read_image, several
from onsight.inference.inputs.input import Input
from onsight.inference.runner import Runner
from onsight.report.notebook import facts_table

if TYPE_CHECKING:
    from torch import nn

    from onsight.inference.torch_runner import TorchRunner
    from onsight.models.classifier import Classifier
    from onsight.models.file import ModelFile


@dataclass(frozen=True)
class Prediction:
    """What the model predicts for one input, or why it cannot.

    predicted: also None if it was withheld, because its probability is lower than was asked for;
    probabilities: float32 (K,) in the order of the classes, None if the image cannot be used;
    unlike: whether it is unlike anything seen in training, None if the model cannot tell; score:
    how unlike, compared with the model's threshold; features: float32 (D,), what the network's last
    layer was given, if they were asked for.
    """

    path: str
    predicted: str | None
    probability: float | None
    problem: str | None
    probabilities: NDArray[np.float32] | None
    out_of_distribution: bool | None = None
    score: float | None = None
    features: NDArray[np.float32] | None = None

    @property
    def unsure(self) -> bool:
        """Whether the class was withheld."""
        return self.predicted is None and self.problem is None


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
        """The model file without its weights, which are in the classifier's network.

        Raises ModelError for an exported model.
        """
        return self._in_torch().file

    @property
    def classifier(self) -> "Classifier":
        """The network with its preprocessing. Raises ModelError for an exported model."""
        return self._in_torch().classifier

    @overload
    def predict(self, images: ImageLike) -> str: ...  # type: ignore[overload-overlap]

    @overload
    def predict(self, images: Iterable[ImageLike]) -> list[str]: ...

    def predict(self, images: ImageLike | Iterable[ImageLike]) -> str | list[str]:
        """The class of an image, or of each of several in a list.

        An image is a path, the bytes of a file, a Pillow image, or an array or tensor of uint8
        or of floats from 0 to 1, (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels; several
        are any iterable of these or an array (n, H, W, C). As with NumPy's functions, one image
        gives one label and several give a list. Raises ImageError for an image that cannot be
        used, which `predictions` lists.
        """
        winners = self.predict_proba(images).argmax(axis=-1)
        if winners.ndim == 0:
            return self.classes[int(winners)]
        return [self.classes[winner] for winner in winners]

    def predict_proba(self, images: ImageLike | Iterable[ImageLike]) -> NDArray[np.float32]:
        """Probabilities (n, K) in the order of `classes`, or (K,) of one image alone.

        Takes what `predict` takes. Raises ImageError.
        """
        rows = self._rows(self.predictions(images), "probabilities")
        if is_one(images):
            return rows[0]
        return np.stack(rows) if rows else np.zeros((0, len(self.classes)), np.float32)

    def embed(self, images: ImageLike | Iterable[ImageLike]) -> NDArray[np.float32]:
        """Features (n, D), what the network's last layer is given, or (D,) of one image alone.

        Alike images have alike features. Takes what `predict` takes. Raises ImageError, and
        ModelError for a network that does not end in a linear layer.
        """
        rows = self._rows(self.predictions(images, features=True), "features")
        if is_one(images):
            return rows[0]
        return np.stack(rows) if rows else self._embed_nothing()

    def predictions(
        self, images: ImageLike | Iterable[ImageLike], features: bool = False
    ) -> Iterator[Prediction]:
        """One Prediction per input, in order; for one that cannot be used, it says why.

        features: give those too. Raises ModelError if the network has none.
        """
        for batch in self.batches(images, features):
            yield from batch

    def batches(
        self, images: ImageLike | Iterable[ImageLike], features: bool = False
    ) -> Iterator[list[Prediction]]:
        """The same in lists, one for each batch that the model takes at once.

        The images of the next batch are decoded while one is computed, and no more are kept.
        """
        read = partial(read_image, target=self.format)
        for batch in prepared_batches(several(images), read, self.runner.at_once):
            yield list(self._predict_batch(batch, features))

    def _rows(self, predictions: Iterable[Prediction], name: str) -> list[NDArray[np.float32]]:
        """A column of predictions. Raises ImageError for an image that cannot be used."""
        rows = []
        for prediction in predictions:
            if prediction.problem is not None:
                raise ImageError(f"{prediction.path}: {prediction.problem}")
            rows.append(getattr(prediction, name))
        return rows

    def _predict_batch(self, batch: Sequence[Prepared], features: bool) -> Iterator[Prediction]:
        usable = [one.pixels for one in batch if one.pixels is not None]
        outcomes = self._outcomes(np.stack(usable), features) if usable else iter(())
        for one in batch:
            name = name_of(one.image)
            if one.problem is not None:
                yield Prediction(name, None, None, one.problem, None)
                continue
            winner, probability, *rest = next(outcomes)
            yield Prediction(name, self.classes[winner], probability, None, *rest)

    def _outcomes(self, images: Pixels, features: bool) -> Iterator[tuple[Any, ...]]:
        """(class number, its probability, and the last fields of a Prediction) of each image."""
        found = self.runner.run(images, features)
        winners = found.probabilities.argmax(axis=1)
        best = found.probabilities[np.arange(len(winners)), winners]
        out_of_distribution = found.out_of_distribution(self.runner.threshold)
        scores = repeat(None) if found.scores is None else found.scores.tolist()
        given = repeat(None) if found.features is None else found.features
        columns = (
            winners.tolist(),
            best.tolist(),
            found.probabilities,
            out_of_distribution,
            scores,
            given,
        )
        return zip(*columns, strict=False)

    def _embed_nothing(self) -> NDArray[np.float32]:
        """The features (0, D) of no images."""
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


# How inputs become predictions, in order: here by Predictor.batches, elsewhere on many machines.
Batches = Callable[[Predictor, Iterable[Input], bool], Iterator[list[Prediction]]]


def load(
    model: str | Path, *, device: str = "auto", module: "nn.Module | str | None" = None
) -> Predictor:
    """Load a run folder, a model file or an exported .onnx file for prediction.

    module: the network, or package.module:callable that makes it, for a model of your own: a
    model file never names code to run. Raises ConfigError, ModelError, DeviceError.
    """
    if Path(model).suffix.lower() == ".onnx":
        from onsight.inference.onnx_runner import load_onnx

        return Predictor(load_onnx(Path(model), device))
    from onsight.inference.torch_runner import load_runner

    return Predictor(load_runner(model, device, module))
