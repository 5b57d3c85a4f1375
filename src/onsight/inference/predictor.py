"""A trained model that predicts images, decoded and preprocessed exactly as in training."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from onsight.data.pixels import Pixels
from onsight.errors import ConfigError, ImageError, ModelError
from onsight.evaluation.results import Results, check_types
from onsight.files import similar_names
from onsight.inference.images import (
    ImageLike,
    Input,
    PreparedImage,
    as_images,
    image_name,
    is_single_image,
    prepare_batches,
    read_image,
)
from onsight.inference.runner import NOT_FINITE, Runner
from onsight.models.unsuitable import exported_error
from onsight.text import notebook_table

if TYPE_CHECKING:
    from torch import nn

    from onsight.inference.torch_runner import TorchRunner
    from onsight.models.classifier import ImageClassifier
    from onsight.models.file import BlendFile, ModelFile

_RUN_FILES = (  # files of a run folder that are read by `report`, `compare` and `card`
    "config.toml",
    "environment.json",
    "metrics.jsonl",
    "placement.json",
    "plan.json",
    "predictions.csv",
    "problems.csv",
    "results.json",
)


@dataclass(frozen=True)
class Prediction:
    """The prediction for one input, or the reason why there is none.

    Attributes:
        path: The path of the image, or a name for an image in memory.
        predicted: The class. None if the image cannot be used, or its class was withheld.
        probability: The probability of the most probable class.
        problem: Why the image cannot be used; None if it can.
        probabilities: The probabilities (K,), in the order of the classes.
        out_of_distribution: Whether the image is unlike the training images. None if the model
            has no detector.
        score: The out-of-distribution score, to compare with the model's threshold.
        features: The input of the last layer (D,), on request.
        top: The most probable classes and their probabilities, on request.
    """

    path: str
    predicted: str | None
    probability: float | None
    problem: str | None
    probabilities: NDArray[np.float32] | None = field(repr=False)
    out_of_distribution: bool | None = None
    score: float | None = None
    features: NDArray[np.float32] | None = field(default=None, repr=False)
    top: tuple[tuple[str, float], ...] = ()

    @property
    def unsure(self) -> bool:
        """True if the class was withheld because its probability was too low."""
        return self.predicted is None and self.problem is None


class Predictor:
    """A trained model with the prediction methods of scikit-learn; returned by `onsight.load`.

    Attributes:
        classes: The names of the K classes, in the order of probabilities.
        format: The size, channels and fit that images are prepared with.
        runner: What computes the model: torch, or onnxruntime for an exported model.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.classes = runner.classes
        self.format = runner.format

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {fact}" for name, fact in self.runner.facts.items())
        return f"<Predictor {facts}>"

    def _repr_html_(self) -> str:
        return notebook_table("Predictor", self.runner.facts)

    @property
    def file(self) -> "ModelFile | BlendFile":
        """The model file, without its tensors: they are in the classifier's networks.

        Raises:
            ModelError: The model is an exported one.
        """
        return self._torch_runner().file

    @property
    def classifier(self) -> "ImageClassifier":
        """The networks with their preprocessing.

        Raises:
            ModelError: The model is an exported one.
        """
        return self._torch_runner().classifier

    @overload
    def __call__(self, images: ImageLike, top: int = 5) -> Prediction: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, images: Iterable[ImageLike], top: int = 5) -> list[Prediction]: ...

    def __call__(
        self, images: ImageLike | Iterable[ImageLike], top: int = 5
    ) -> Prediction | list[Prediction]:
        """Return the prediction for an image, or a list with one for each of several images.

        Args:
            images: The same as for `predict`.
            top: How many of the most probable classes to include.

        Returns:
            A prediction has the class (`predicted`), its `probability`, and the `top` classes with
            theirs. For an image that cannot be used, it has a `problem` instead.
        """
        if top < 1:
            raise ConfigError(f"top = {top} must be at least 1")
        rows = [
            row
            if row.probabilities is None
            else replace(row, top=tuple(top_classes(self.classes, row.probabilities, top)))
            for row in self.predictions(images)
        ]
        return rows[0] if is_single_image(images) else rows

    @overload
    def predict(self, images: ImageLike) -> str: ...  # type: ignore[overload-overlap]

    @overload
    def predict(self, images: Iterable[ImageLike]) -> list[str]: ...

    def predict(self, images: ImageLike | Iterable[ImageLike]) -> str | list[str]:
        """Return the class of an image, or a list with the class of each of several images.

        Args:
            images: An image is a path, the bytes of a file, a Pillow image, or an array or tensor
                of shape (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels, uint8 or floats
                from 0 to 1. Several images are a folder, any iterable of these, or an array
                (n, H, W, C).

        Raises:
            ImageError: An image cannot be used. Calling the predictor reports it instead.
            DataError: A folder has no files.
        """
        winners = self.predict_proba(images).argmax(axis=-1)
        if winners.ndim == 0:
            return self.classes[int(winners)]
        return [self.classes[winner] for winner in winners]

    def predict_proba(self, images: ImageLike | Iterable[ImageLike]) -> NDArray[np.float32]:
        """Return probabilities (n, K) in the order of `classes`, or (K,) for a single image.

        Args:
            images: The same as for `predict`.

        Raises:
            ImageError: An image cannot be used.
        """
        rows = _column(self.predictions(images), "probabilities")
        if is_single_image(images):
            return rows[0]
        return np.stack(rows) if rows else np.zeros((0, len(self.classes)), np.float32)

    def embed(self, images: ImageLike | Iterable[ImageLike]) -> NDArray[np.float32]:
        """Return features (n, D), the input of the network's last layer, or (D,) for one image.

        Similar images have similar features.

        Args:
            images: The same as for `predict`.

        Raises:
            ImageError: An image cannot be used.
            ModelError: The network does not end in a linear layer.
        """
        rows = _column(self.predictions(images, features=True), "features")
        if is_single_image(images):
            return rows[0]
        return np.stack(rows) if rows else self._no_features()

    def predictions(
        self, images: ImageLike | Iterable[ImageLike], features: bool = False
    ) -> Iterator[Prediction]:
        """Yield a Prediction per image, in order; one that cannot be used has its `problem`.

        Args:
            images: The same as for `predict`.
            features: Include the features.

        Raises:
            ModelError: Features are wanted, and the network has none.
        """
        for batch in self.batches(images, features):
            yield from batch

    def batches(
        self, images: ImageLike | Iterable[ImageLike], features: bool = False
    ) -> Iterator[list[Prediction]]:
        """Yield the predictions batch by batch.

        The images of the next batch are decoded while the current one is computed; no more than
        that are in memory.
        """
        read = partial(read_image, target=self.format)
        for batch in prepare_batches(as_images(images), read, self.runner.batch_size):
            yield list(self._predict_batch(batch, features))

    def _predict_batch(
        self, batch: Sequence[PreparedImage], features: bool
    ) -> Iterator[Prediction]:
        usable = [prepared.pixels for prepared in batch if prepared.pixels is not None]
        rows = self._classify(np.stack(usable), features) if usable else iter(())
        for prepared in batch:
            name = image_name(prepared.image)
            if prepared.problem is not None:
                yield Prediction(name, None, None, prepared.problem, None)
                continue
            is_finite, winner, probability, *rest = next(rows)
            if is_finite:
                yield Prediction(name, self.classes[winner], probability, None, *rest)
            else:
                yield Prediction(name, None, None, NOT_FINITE, None)

    def _classify(self, images: Pixels, features: bool) -> Iterator[tuple[Any, ...]]:
        """Yield whether it is usable, the class number, the probability, and the last fields."""
        outputs = self.runner.run(images, features)
        winners = outputs.probabilities.argmax(axis=1)
        columns = (
            outputs.are_finite,
            winners.tolist(),
            outputs.probabilities[np.arange(len(winners)), winners].tolist(),
            outputs.probabilities,
            outputs.out_of_distribution(self.runner.threshold),
            repeat(None) if outputs.scores is None else outputs.scores.tolist(),
            repeat(None) if outputs.features is None else outputs.features,
        )
        return zip(*columns, strict=False)

    def _no_features(self) -> NDArray[np.float32]:
        """Return features of shape (0, D); a blank image shows what D is."""
        size = self.format
        blank = np.zeros((1, size.height, size.width, size.channels), np.uint8)
        features = self.runner.run(blank, features=True).features
        assert features is not None
        return features[:0]

    def feature_note(self) -> str:
        """Return which member of a blend computes features; empty for a single network."""
        classifier = self.classifier
        for name, member in classifier.members.items():
            if name and member is classifier.feature_member:
                return f"features are those of the blend's member {name}"
        return ""

    def _torch_runner(self) -> "TorchRunner":
        from onsight.inference.torch_runner import TorchRunner

        if not isinstance(self.runner, TorchRunner):
            raise exported_error("reading its network or model file")
        return self.runner


# Turns inputs into predictions, in order: Predictor.batches, or the same work on a cluster.
Batches = Callable[[Predictor, Iterable[Input], bool], Iterator[list[Prediction]]]


def load(
    model: str | Path,
    *,
    device: str = "auto",
    module: "nn.Module | str | None" = None,
    member: str = "",
) -> Predictor:
    """Load a model for prediction.

    Args:
        model: A run folder, a model file, or an exported .onnx file.
        device: auto, cpu, cuda, cuda:1, xpu or mps.
        module: For a model with your own network: the network, or the
            package.module:callable that makes it. A model file never names code to run.
        member: For a blend: the name of one of its networks, to use it alone.

    Raises:
        ConfigError: An argument is invalid.
        ModelError: The file is missing, damaged or not a model.
        OutputError: The results in the file are damaged.
        DeviceError: The device does not exist.
    """
    if not Path(model).exists():
        raise ModelError(f"{model} does not exist.{similar_names(model)}")
    if Path(model).suffix.lower() == ".onnx":
        from onsight.inference.onnx_runner import load_onnx

        if member:
            raise exported_error("choosing a member")
        exported = load_onnx(Path(model), device)
        check_types(Path(model), exported.metadata["results"], Results)
        return Predictor(exported)
    from onsight.hardware.devices import choose_device
    from onsight.inference.torch_runner import TorchRunner
    from onsight.models.file import load_model_file

    file = load_model_file(model, member)
    check_types(Path(model), file.results, Results)
    return Predictor(TorchRunner(file, choose_device(device).value, module))


def top_classes(
    classes: Sequence[str], probabilities: NDArray[np.float32], count: int
) -> list[tuple[str, float]]:
    """Return the most probable classes with their probabilities (K,), best first.

    Ties are in the order of the classes.
    """
    best = np.argsort(-probabilities, kind="stable")[:count].tolist()
    values = probabilities.tolist()
    return [(classes[number], values[number]) for number in best]


def list_model_files(model: Path) -> list[Path]:
    """Return the files that belong to a model, the one with its weights first."""
    if model.is_dir():
        from onsight.models.file import FILE_NAME  # loads torch, which a run folder needs anyway

        return [model / FILE_NAME, *(model / name for name in _RUN_FILES)]
    return [model, model.with_name(f"{model.name}.proof.json")]


def _column(predictions: Iterable[Prediction], name: str) -> list[NDArray[np.float32]]:
    """Return one field of all predictions. Raises ImageError for an image that cannot be used."""
    rows = []
    for prediction in predictions:
        if prediction.problem is not None:
            raise ImageError(f"{prediction.path}: {prediction.problem}")
        rows.append(getattr(prediction, name))
    return rows
