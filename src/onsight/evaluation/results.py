"""The results of an evaluation or a run, as JSON values.

The ends of a proportion's 95% confidence interval have its name with `_low` and `_high`. All three
are None if n is 0.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # that of Python 3.11 is unknown to pydantic

from onsight.data.index import Problem
from onsight.errors import OutputError


class Accuracy(TypedDict):
    """The proportion of images that were classified correctly."""

    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None


class ClassResult(Accuracy):
    """The metrics of one class; its accuracy is one-vs-rest."""

    name: str
    images: int  # images of this class
    predicted: int  # predicted as this class
    recall: float | None
    recall_low: float | None
    recall_high: float | None
    precision: float | None
    precision_low: float | None
    precision_high: float | None
    f1: float | None
    train_images: NotRequired[int]
    validation_images: NotRequired[int]


def sort_by_recall(classes: Iterable[ClassResult]) -> list[ClassResult]:
    """Sort classes by increasing recall; classes without images come last."""
    return sorted(classes, key=lambda row: 2.0 if row["recall"] is None else row["recall"])


class CalibrationBin(TypedDict):
    """The images whose confidence is above `low` and at most `high`."""

    low: float
    high: float
    images: int
    confidence: float | None  # mean
    accuracy: float | None


class ConfusedPair(TypedDict):
    """Two classes that the model confuses."""

    classes: tuple[str, str]
    told_apart: Literal["no", "hardly"]  # no better than chance, or often confused
    images: int  # images of both classes that were predicted as one of the two
    accuracy: float  # mean of the two recalls among these images
    accuracy_low: float
    accuracy_high: float
    mistakes: int  # images of one class that were predicted as the other


class EvaluationMetrics(Accuracy):
    """Metrics that depend on predictions alone. `images` is the n of every proportion."""

    images: int
    balanced_accuracy: float | None  # mean recall of the classes that have images
    balanced_accuracy_low: float | None
    balanced_accuracy_high: float | None
    loss: float | None
    largest_loss: NotRequired[float | None]  # of a single image
    top5: float | None  # None for five classes or fewer
    top5_low: NotRequired[float | None]
    top5_high: NotRequired[float | None]
    expected_calibration_error: float | None
    calibration: list[CalibrationBin]
    expected_calibration_error_before: NotRequired[float | None]  # before temperature scaling
    calibration_before: NotRequired[list[CalibrationBin]]
    classes: list[ClassResult]
    confusion: list[list[int]] | None  # (K, K), rows are labels; None for very many classes
    confused_pairs: list[ConfusedPair] | None  # None for very many classes


class FoldResult(Accuracy):
    """The result of one fold of cross-validation, on the images held out from its training."""

    fold: int
    images: int
    best_epoch: int
    epochs: int
    seconds: float  # duration of training and evaluation
    left_out: NotRequired[int]  # training images that there was no time to fit a head on


class MemberResult(Accuracy):
    """A model that `--model auto` trained, measured on images it did not learn from."""

    name: str
    model: str
    images: int
    loss: float | None  # log loss before temperature scaling; None without images
    weight: float  # in the blend; 0 if it was left out
    image_size: list[int]  # (height, width) of its input
    parameters: int
    seconds: float  # duration of its training
    ms_per_image: float


class TtaResult(TypedDict, total=False):
    """The accuracy with test-time augmentation: probabilities are means over several views."""

    tta: str
    tta_images: int
    tta_accuracy: float | None
    tta_accuracy_low: float | None
    tta_accuracy_high: float | None


class ValidationResult(TypedDict, total=False):
    """The accuracy of the final model on the images that its weights and epochs were chosen on."""

    validation_images: int
    validation_accuracy: float | None
    validation_accuracy_low: float | None
    validation_accuracy_high: float | None
    validation_loss: float | None


class LearningCurveRow(Accuracy):
    """The accuracy after training on `train_images` images, evaluated on `images` other images."""

    train_images: int
    images: int


class LearningCurve(TypedDict):
    """The expected gain from more images, estimated from training runs on some of the images.

    The error is modelled as factor * train_images ** -exponent.
    """

    network: NotRequired[str]  # the member of a blend that it is of
    points: list[LearningCurveRow]
    exponent: float
    factor: float
    gain: float  # accuracy gained with twice the images, from 0 to 1
    gain_low: float
    gain_high: float


class OutOfDistributionResult(TypedDict):
    """The out-of-distribution threshold, and the proportion of images that exceed it."""

    threshold: float  # images with a higher score are flagged
    share: float  # maximum proportion of images from the training distribution that are flagged
    held_out: int  # images that the threshold was set on
    images: int  # other images that it was tested on
    flagged: float | None  # proportion of these images; None if there are none
    flagged_low: float | None
    flagged_high: float | None


class Results(EvaluationMetrics, TtaResult, ValidationResult, total=False):
    """The content of results.json, and the result of `onsight.evaluate`."""

    split: str
    temperature: float  # logits are divided by it before they become probabilities
    temperature_reason: str
    out_of_distribution: OutOfDistributionResult | None  # None if the model has no detector
    out_of_distribution_reason: str
    learning_curve: LearningCurve
    folds: int  # number of cross-validation models; each evaluated a part of the images
    fold_results: list[FoldResult]
    members: list[MemberResult]  # with --model auto
    fitted: int  # images that the head was fitted on, including validation images
    left_out: int  # training images that there was no time to fit the head on
    used: int  # images in any split
    problems: int  # files that could not be used
    notes: list[str]
    model: str
    parameters: int
    device: str
    ranks: int
    data: str
    found: str  # description of the data
    best_epoch: int
    best_blend: float  # weight of that epoch's model in the blend with the start of fine-tuning
    epochs: int
    # Of training; of a head, at which features were computed, None if all were cached.
    images_per_second: float | None
    data_wait_share: float
    peak_device_memory_bytes: int
    phases: dict[str, float]  # seconds by name
    peak_memory_bytes: int
    seconds: float
    report: str
    seen: int  # images that the model was trained or selected with, excluded from an evaluation
    problem_rows: list[Problem]


class LossLine(TypedDict):
    """The mean loss since the previous line."""

    step: int
    loss: float
    seconds: float  # training time so far


class EpochRow(TypedDict):
    """One epoch, as in metrics.jsonl. Test results are optional."""

    epoch: int
    train_loss: float
    learning_rate: float
    seconds: float
    images_per_second: float | None  # None for a head on cached features
    data_wait_share: float
    lines: list[LossLine]
    validation_loss: float | None
    validation_accuracy: float | None
    validation_accuracy_low: float | None
    validation_accuracy_high: float | None
    validation_images: int
    test_loss: NotRequired[float | None]
    test_accuracy: NotRequired[float | None]
    test_accuracy_low: NotRequired[float | None]
    test_accuracy_high: NotRequired[float | None]
    test_images: NotRequired[int]


def check_types(path: Path, value: object, kind: Any) -> None:
    """Raise OutputError, with the key, if JSON from a file is not of a kind such as Results.

    Keys of the outermost object may be missing, as in files of other versions.
    """
    # Of the bytes of paths, which are lone surrogates, no type depends.
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    try:
        TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        for wrong in error.errors(include_url=False):
            key = ".".join(map(str, wrong["loc"]))
            if wrong["type"] != "missing" or "." in key:
                raise OutputError(
                    f"{path} is damaged: {key or 'the whole'}: {wrong['msg'].lower()}. "
                    "Restore it, or train again"
                ) from error
