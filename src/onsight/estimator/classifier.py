"""A classifier in scikit-learn's manner, which needs no scikit-learn to be installed."""

import copy
import shutil
import sys
import tempfile
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
from onsight.estimator.labels import name_columns, read_labels
from onsight.estimator.trained import Trained
from onsight.models.catalog import is_user_spec
from onsight.report.console import Reporter, SilentReporter
from onsight.training.run import Run, train
from onsight.words import listed

_OWN = ("budget", "out", "verbose")
_USUAL_BUDGET = "60s"


class Classifier:
    """Trains on images and predicts their classes, as scikit-learn's classifiers do.

    budget: time for a fit, 60s if neither it nor `epochs` is given; out: the run folder, by default
    a temporary one that lasts as long as this object; verbose: show progress; fields: those of the
    config. No test images are held out unless `test_fraction` says so. After `fit`, `classes_`
    are the labels in order (K,) and `run_` is the Run. Raises ArgumentError, a ValueError.
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
        usual = Classifier().get_params()
        given = self.get_params().items()
        shown = (f"{name}={value!r}" for name, value in given if usual.get(name, "") is not value)
        return f"Classifier({', '.join(shown)})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor; of the config's fields, those given."""
        return {name: getattr(self, name) for name in _OWN} | self.fields

    def set_params(self, **params: Any) -> Self:
        """Replace arguments of the constructor. Raises ArgumentError for an unknown name."""
        fields = {name: value for name, value in params.items() if name not in _OWN}
        _check_names(fields)
        self.fields = self.fields | fields
        vars(self).update({name: params[name] for name in _OWN if name in params})
        return self

    def fit(self, X: Any, y: Any, **unsupported: Any) -> Self:
        """Train on n images X and their labels y (n,) of str or int.

        X: a list of paths, Pillow images, arrays or tensors, or an array (n, H, W) or (n, H, W, C);
        pixels are uint8 or floats from 0 to 1.
        """
        if unsupported:
            raise ArgumentError(
                f"fit does not take {listed(list(unsupported))}; to make rare classes count more, "
                'use class_weights="balanced"'
            )
        with _as_value_errors():
            classes, labels = read_labels(y)
            columns = name_columns(classes)
            model = self.fields.get("model")
            if isinstance(model, nn.Module):
                model = copy.deepcopy(model)  # training must not change the argument
            run = self._train((X, labels), model)
            own = model if isinstance(model, nn.Module) or is_user_spec(str(model)) else None
            device = self.fields.get("device", "auto")
            trained = Trained(run.model.read_bytes(), own, device)
        self.classes_, self.run_, self._trained, self._columns = classes, run, trained, columns
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of each image: (n,), of the type of y."""
        rows = self.predict_proba(X)
        winners: NDArray[Any] = self.classes_[rows.argmax(axis=1)]
        return winners

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Probabilities (n, K) in the order of `classes_`."""
        self._check_fitted()
        with _as_value_errors():
            check_images(X)
            predictor = self._trained.predictor()
            found = predictor.predict_proba(list(X))
        # A class none of whose images could be used is not one of the model's.
        rows = np.zeros((len(found), len(self.classes_)), np.float32)
        rows[:, [self._columns[name] for name in predictor.classes]] = found
        return rows

    def score(self, X: Any, y: Any) -> float:
        """The share of the images X whose predicted label is that of y (n,)."""
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
        fields["budget"] = self.budget or ("" if "epochs" in fields else _USUAL_BUDGET)
        reporter = Reporter() if self.verbose else SilentReporter()
        return train(data, out=self.out or self._temporary_folder(), reporter=reporter, **fields)

    def _temporary_folder(self) -> Path:
        folder = tempfile.mkdtemp(prefix="onsight-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder) / "run"

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            # scikit-learn's own error if anybody here can be waiting for it
            kind = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", NotFitted)
            raise kind("this Classifier is not fitted yet: call fit(X, y) first")


def _check_names(fields: dict[str, Any]) -> None:
    known = [*_OWN, *Config.model_fields]
    for name in fields:
        if name not in known:
            raise ArgumentError(f"Classifier has no '{name}'.{did_you_mean(name, known)}")


@contextmanager
def _as_value_errors() -> Iterator[None]:
    """Raise what scikit-learn's callers expect; Ctrl-C ends a whole search, not one of its fits."""
    try:
        yield
    except Interrupted as error:
        raise KeyboardInterrupt(str(error)) from error
    except ArgumentError:
        raise
    except (UserError, ImageError) as error:
        raise ArgumentError(str(error)) from error
