"""The results of an evaluation or a run, as plain values that JSON keeps.

A share (accuracy, recall ...) has the ends of its 95% interval beside it, as `_low` and `_high`;
all three are None where n is 0. What only some results have is not required.
"""

from collections.abc import Iterable
from typing import Literal, NotRequired, TypedDict

from onsight.data.index import Problem


class Accuracy(TypedDict):
    """The share of images that were classified right."""

    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None


class ClassResult(Accuracy):
    """One class; its accuracy is that of this class against the rest.

    images: images of the class; predicted: images taken for it.
    """

    name: str
    images: int
    predicted: int
    recall: float | None
    recall_low: float | None
    recall_high: float | None
    precision: float | None
    precision_low: float | None
    precision_high: float | None
    f1: float | None
    train_images: NotRequired[int]
    validation_images: NotRequired[int]


def worst_first(classes: Iterable[ClassResult]) -> list[ClassResult]:
    """The classes by rising recall, those without images last."""
    return sorted(classes, key=lambda row: 2.0 if row["recall"] is None else row["recall"])


class CalibrationBin(TypedDict):
    """The images whose confidence is above low and at most high; means over them."""

    low: float
    high: float
    images: int
    confidence: float | None
    accuracy: float | None


class ConfusedPair(TypedDict):
    """Two classes that are hard to tell apart, or cannot be (told_apart: `hardly` or `no`).

    images: images of both that were predicted as either; accuracy: the mean of the two shares
    that are right, with its 95% interval; mistakes: images of one predicted as the other.
    """

    classes: tuple[str, str]
    told_apart: Literal["no", "hardly"]
    images: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    mistakes: int


class Metrics(Accuracy):
    """What follows from the predictions alone; images is the n of every share.

    balanced_accuracy: the mean of the recalls of the classes that have images. top5 is None for
    five classes or fewer. Keys in `_before` say what held without the temperature, where it is not
    1. confusion: counts (K, K), rows are labels; it and confused_pairs are None for very many
    classes.
    """

    images: int
    balanced_accuracy: float | None
    balanced_accuracy_low: float | None
    balanced_accuracy_high: float | None
    loss: float | None
    top5: float | None
    top5_low: NotRequired[float | None]
    top5_high: NotRequired[float | None]
    expected_calibration_error: float | None
    calibration: list[CalibrationBin]
    expected_calibration_error_before: NotRequired[float | None]
    calibration_before: NotRequired[list[CalibrationBin]]
    classes: list[ClassResult]
    confusion: list[list[int]] | None
    confused_pairs: list[ConfusedPair] | None


class FoldResult(Accuracy):
    """One fold: how its model did on the images that were held out from it.

    seconds: of its training and judging.
    """

    fold: int
    images: int
    best_epoch: int
    epochs: int
    seconds: float


class TtaResult(TypedDict, total=False):
    """The accuracy where probabilities are means over several views of each image."""

    tta: str
    tta_images: int
    tta_accuracy: float | None
    tta_accuracy_low: float | None
    tta_accuracy_high: float | None


class LearningCurvePoint(Accuracy):
    """The accuracy after training on train_images images, judged by images others."""

    train_images: int
    images: int


class LearningCurve(TypedDict):
    """What more images would bring, from trainings on fewer.

    The error is taken to fall as train_images ** -exponent; gain: the accuracy to expect in
    addition with twice the images, as a share, with its 95% interval.
    """

    points: list[LearningCurvePoint]
    exponent: float
    factor: float
    gain: float
    gain_low: float
    gain_high: float


class OutOfDistributionResult(TypedDict):
    """Which images are said to be unlike anything seen in training: those of a score above.

    share: of new images like those of training, at most so many are flagged nonetheless;
    held_out: images that the threshold was set on; flagged: the share of images others that
    really are, None if there are none.
    """

    threshold: float
    share: float
    held_out: int
    images: int
    flagged: float | None
    flagged_low: float | None
    flagged_high: float | None


class Results(Metrics, TtaResult, total=False):
    """Metrics and how they came about, as in results.json and from `onsight.evaluate`.

    temperature: what the logits are divided by before they become probabilities; unlike: None if
    the model does not tell unlike images, for a reason; folds: by how many
    models the images were judged, each once; fitted: how many images a frozen network's head
    was fitted on, where those of validation are among them; used, problems: numbers of images
    used and refused; best_blend: how far the model lies on the way from a fine-tuning's start to
    that epoch; seen: left out of an evaluation because they trained or chose the model; phases:
    seconds by name.
    """

    split: str
    temperature: float
    temperature_reason: str
    out_of_distribution: OutOfDistributionResult | None
    out_of_distribution_reason: str
    learning_curve: LearningCurve
    folds: int
    fold_results: list[FoldResult]
    fitted: int
    used: int
    problems: int
    notes: list[str]
    model: str
    parameters: int
    device: str
    ranks: int
    data: str
    found: str
    best_epoch: int
    best_blend: float
    epochs: int
    images_per_second: float
    data_wait_share: float
    peak_device_memory_bytes: int
    phases: dict[str, float]
    peak_memory_bytes: int
    seconds: float
    report: str
    seen: int
    problem_rows: list[Problem]


class LossLine(TypedDict):
    """The mean loss of the steps since the line before; seconds of training so far."""

    step: int
    loss: float
    seconds: float


class EpochRow(TypedDict):
    """One epoch, as in metrics.jsonl; test results only where they were asked for."""

    epoch: int
    train_loss: float
    learning_rate: float
    seconds: float
    images_per_second: float
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
