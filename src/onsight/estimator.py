"""A classifier with the interface of scikit-learn, which need not be installed."""

import copy
import shutil
import sys
import tempfile
import unicodedata
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from onsight.config import Config
from onsight.data.sources.memory import check_images
from onsight.errors import (
    ArgumentError,
    ImageError,
    Interrupted,
    NotFitted,
    UserError,
    did_you_mean,
)
from onsight.files import write_atomically
from onsight.inference.predictor import Predictor, load
from onsight.models.catalog import is_user_spec
from onsight.models.file import FILE_NAME
from onsight.report.console import Reporter, SilentReporter
from onsight.text import joined, plural
from onsight.training.run import Run, train

_OWN_PARAMETERS = ("budget", "out", "verbose")  # all others are config fields


class Classifier:
    """An image classifier that follows scikit-learn's conventions.

    No test images are held out unless `test_fraction` is set.

    Args:
        budget: Time limit of `fit`; 60s if neither `budget` nor `epochs` is set.
        out: The run folder; by default a temporary one, which is deleted with this object.
        verbose: Whether to show progress.
        **fields: Config fields, such as `model` or `epochs`.

    Attributes:
        classes_: The distinct labels (K,), sorted. Set by `fit`.
        run_: The run, with its results and report. Set by `fit`.

    Raises:
        ArgumentError: An argument is unknown. This is a ValueError.
    """

    _estimator_type = "classifier"

    def __init__(
        self,
        budget: str | None = None,
        *,
        out: str | Path | None = None,
        verbose: bool = False,
        **fields: Any,
    ) -> None:
        _check_names(fields)
        self.budget = budget
        self.out = out
        self.verbose = verbose
        self.fields = fields

    def __repr__(self) -> str:
        defaults = Classifier().get_params()
        arguments = (
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if defaults.get(name, "") is not value
        )
        return f"Classifier({', '.join(arguments)})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments; config fields are included only if set."""
        return {name: getattr(self, name) for name in _OWN_PARAMETERS} | self.fields

    def set_params(self, **params: Any) -> Self:
        """Set arguments of the constructor.

        Raises:
            ArgumentError: A name is unknown.
        """
        fields = {name: value for name, value in params.items() if name not in _OWN_PARAMETERS}
        _check_names(fields)
        self.fields = self.fields | fields
        vars(self).update({name: params[name] for name in _OWN_PARAMETERS if name in params})
        return self

    def fit(self, X: Any, y: Any, **unsupported: Any) -> Self:
        """Train on n images and their labels.

        Args:
            X: A list of n paths, Pillow images, arrays or tensors, or an array (n, H, W) or
                (n, H, W, C); pixels are uint8, or floats from 0 to 1.
            y: n labels of type str or int.
            **unsupported: Not accepted; a message suggests an alternative to `sample_weight`.

        Raises:
            ArgumentError: The images or labels cannot be trained on.
        """
        if unsupported:
            raise ArgumentError(
                f"fit does not take {joined(list(unsupported))}; to make rare classes count more, "
                'use class_weights="balanced"'
            )
        with _as_value_errors():
            classes, labels = _read_labels(y)
            columns = _number_classes(classes)
            model = self.fields.get("model")
            if isinstance(model, nn.Module):
                model = copy.deepcopy(model)  # training must not change the argument
            run = self._train((X, labels), model)
            own = model if isinstance(model, nn.Module) or is_user_spec(str(model)) else None
            device = self.fields.get("device", "auto")
            trained = _StoredModel(run.model.read_bytes(), own, device)
        self.classes_, self.run_, self._trained, self._columns = classes, run, trained, columns
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable label of each image (n,), with the type of y."""
        probabilities = self.predict_proba(X)
        labels: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Return class probabilities (n, K), in the order of `classes_`."""
        self._check_fitted()
        with _as_value_errors():
            check_images(X)
            predictor = self._trained.get_predictor()
            probabilities = predictor.predict_proba(list(X))
        # The model has no output for a class without usable images: its probability is 0.
        rows = np.zeros((len(probabilities), len(self.classes_)), np.float32)
        rows[:, [self._columns[name] for name in predictor.classes]] = probabilities
        return rows

    def score(self, X: Any, y: Any) -> float:
        """Return the accuracy of the predictions for X, given the labels y (n,)."""
        labels, predicted = np.asarray(y), self.predict(X)
        if labels.shape != predicted.shape:
            raise ArgumentError(f"X has {len(predicted)} images, but y has shape {labels.shape}")
        return float(np.mean(predicted == labels))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type=self._estimator_type,
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(two_d_array=False, three_d_array=True, string=True),
            non_deterministic="epochs" not in self.fields,  # a budget depends on the speed
        )

    def _train(self, data: tuple[Any, list[str] | list[int]], model: Any) -> Run:
        fields = {"test_fraction": 0.0, **self.fields}
        if model is not None:
            fields["model"] = model
        fields["budget"] = self.budget or ("" if "epochs" in fields else "60s")
        reporter = Reporter() if self.verbose else SilentReporter()
        return train(data, out=self.out or self._make_folder(), reporter=reporter, **fields)

    def _make_folder(self) -> Path:
        """Create a temporary run folder, which is deleted with this object."""
        folder = tempfile.mkdtemp(prefix="onsight-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder) / "run"

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            # Code that uses scikit-learn expects its NotFittedError.
            error_type = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", NotFitted)
            raise error_type("this Classifier is not fitted yet: call fit(X, y) first")


class _StoredModel:
    """A trained model that can be copied and pickled.

    Args:
        content: The content of the model file.
        module: The user's own network or its package.module:callable, if any.
        device: The device to predict on.
    """

    def __init__(self, content: bytes, module: nn.Module | str | None, device: str) -> None:
        self._content = content
        self._module = module
        self._device = device
        self._predictor: Predictor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_predictor": None}

    def get_predictor(self) -> Predictor:
        """Return the predictor, which is loaded on first use. Raises ModelError, DeviceError."""
        if self._predictor is None:
            with tempfile.TemporaryDirectory(prefix="onsight-") as folder:
                path = Path(folder) / FILE_NAME
                write_atomically(path, self._content)
                self._predictor = load(path, device=self._device, module=self._module)
        return self._predictor


def _check_names(fields: dict[str, Any]) -> None:
    known = [*_OWN_PARAMETERS, *Config.model_fields]
    for name in fields:
        if name not in known:
            raise ArgumentError(f"Classifier has no '{name}'.{did_you_mean(name, known)}")


def _read_labels(y: Any) -> tuple[NDArray[Any], list[Any]]:
    """Check the labels y.

    Returns:
        The sorted distinct labels (K,), with the type of y, and the n labels to train with.

    Raises:
        ArgumentError: y does not have one str or whole number per image, or has only one class.
    """
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise ArgumentError(f"y has shape {labels.shape}; it must have one label per image, (n,)")
    values = labels.tolist()
    missing = [row for row, label in enumerate(values) if label is None or label != label]
    if missing:
        raise ArgumentError(
            f"y has {plural(len(missing), 'missing label')} (NaN or None), the first in row "
            f"{missing[0]}; remove these images"
        )
    if labels.dtype.kind == "f" and (labels % 1).any():
        raise ArgumentError("y has fractions: Classifier needs classes, not measurements")
    try:
        classes = np.unique(labels)
    except TypeError:  # values of several types have no order
        raise ArgumentError("y has labels of several types; give only str or only int") from None
    if len(classes) == 1:
        raise ArgumentError(f"y has only one class, {values[0]!r}; a classifier needs at least two")
    return classes, [str(label) for label in values] if labels.dtype.kind == "f" else values


def _number_classes(classes: NDArray[Any]) -> dict[str, int]:
    """Return the number of each class by its name in the run, which is in Unicode's form NFC.

    Raises:
        ArgumentError: Two names are equal in that form.
    """
    names = [unicodedata.normalize("NFC", str(label)) for label in classes.tolist()]
    columns = {name: column for column, name in enumerate(names)}
    if len(columns) < len(names):
        raise ArgumentError("two labels of y differ only in how Unicode writes an accent")
    return columns


@contextmanager
def _as_value_errors() -> Iterator[None]:
    """Turn UserError and ImageError into ValueError, as scikit-learn's tools expect.

    Interrupted becomes KeyboardInterrupt, so that Ctrl-C ends a whole search, not only one fit.
    """
    try:
        yield
    except Interrupted as error:
        raise KeyboardInterrupt(str(error)) from error
    except ArgumentError:
        raise
    except (UserError, ImageError) as error:
        raise ArgumentError(str(error)) from error
