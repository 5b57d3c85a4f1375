"""What a run's figures mean, and what they do not mean, in plain sentences."""

from collections.abc import Sequence
from typing import Literal

from onsight.evaluation.results import ClassResult, ConfusedPair, LearningCurve, Results
from onsight.evaluation.statistics import fold_interval_ratio
from onsight.words import percent, plural

_ERROR_BEFORE: Literal["expected_calibration_error_before"] = "expected_calibration_error_before"
_UNBALANCED = 2.0  # times the held-out images
FEW_IMAGES = 30  # of a class: with fewer, its recall is uncertain by 17 points or more


def meaning(results: Results, classes: Sequence[ClassResult]) -> list[str]:
    """The headline accuracy in plain sentences."""
    accuracy, low, n = results["accuracy"], results["accuracy_low"], results["images"]
    if accuracy is None or low is None or not n:
        return [
            "There are no held-out images, so the accuracy of this classifier is unknown.",
            "Hold some out with --test-fraction, or give the data a test split.",
        ]
    folds = results["folds"] if results["split"] == "folds" else None
    right = f"{round(accuracy * n):,}"
    sentences = [
        f"Of {n:,} images, each judged once by one of {folds} models that had not seen it, "
        f"{right} were classified correctly."
        if folds
        else f"Of {n:,} {results['split']} images that it was not trained on, it classified "
        f"{right} correctly.",
        f"On new images of the same kind, expect an accuracy between {percent(low)} and "
        f"{percent(results['accuracy_high'])} (95% interval).",
    ]
    if folds:
        sentences.append(
            f"The model that is kept has seen all {n:,} images, in training or to choose its "
            f"epoch, so none is left to judge it. The {folds} models that were judged have learned "
            "from fewer, so it is probably no worse. As they share most of their images, the "
            f"interval is {fold_interval_ratio(folds):.2g} times as wide as that of a single model."
        )
    if classes:
        sentences.append(_against_the_commonest(low, n, classes))
    if results["split"] == "validation":
        sentences.append(
            "These images were also used to choose which epoch to keep, so the figure is "
            "slightly optimistic; a test split would avoid that."
        )
    return sentences


def _against_the_commonest(accuracy_low: float, n: int, classes: Sequence[ClassResult]) -> str:
    commonest = max(classes, key=lambda row: row["images"] or 0)
    share = (commonest["images"] or 0) / n
    answer = f"always answering '{commonest['name']}', the most frequent class"
    if accuracy_low > share:
        return f"For comparison, {answer}, would be right for {percent(share)} of these {n:,}."
    return (
        f"It has not been shown to beat {answer}, which would be right for {percent(share)} "
        f"of these {n:,}."
    )


def clearly_below(row: ClassResult, accuracy: float | None) -> bool:
    """Whether the whole interval of a class's recall is below the overall accuracy."""
    high = row["recall_high"]
    return accuracy is not None and high is not None and high < accuracy


def noise_sentences(
    worst_first: Sequence[ClassResult], accuracy: float | None, n: int
) -> list[str]:
    """Whether the classes differ by more than chance explains."""
    judged = [row for row in worst_first if row["recall"] is not None]
    if accuracy is None or len(judged) < 2:
        return []
    worst, below = judged[0], [row for row in judged if clearly_below(row, accuracy)]
    overall = f"overall accuracy of {percent(accuracy)} (n = {n:,})"
    sentence = (
        f"The worst class is '{worst['name']}': {percent(worst['recall'])} of its "
        f"{worst['images']:,} images were recognised. Its interval, "
        f"{percent(worst['recall_low'])} to {percent(worst['recall_high'])}, "
    )
    if worst in below:
        sentence += f"is below the {overall}, which is more than noise."
    else:
        sentence += f"includes the {overall}, so it may be noise."
    if not below:
        return [sentence, "No class is clearly worse than the overall accuracy."]
    return [
        sentence,
        f"Classes whose whole interval is below the overall accuracy (marked ▼): {len(below)} of "
        f"{len(judged)}. If all were equally hard, chance alone would put about "
        f"{0.025 * len(judged):.2g} there.",
    ]


def trust(claimed: float, right: float, results: Results) -> str:
    """Whether its confidence matches its accuracy; empty without an interval to judge by."""
    low, high = results["accuracy_low"], results["accuracy_high"]
    if low is None or high is None:
        return ""
    if abs(claimed - right) <= (high - low) / 2:
        return "Within noise, its confidence matches its accuracy."
    return "It is overconfident." if claimed > right else "It is underconfident."


def is_unbalanced(classes: Sequence[ClassResult]) -> bool:
    """Whether the largest class has over twice the held-out images of the smallest."""
    images = [row["images"] for row in classes if row["images"]]
    return bool(images) and max(images) > _UNBALANCED * min(images)


def pair_sentence(pair: ConfusedPair) -> str:
    """How well two classes are told apart, with n, interval and what guessing would give."""
    one, other = pair["classes"]
    how = "cannot be" if pair["told_apart"] == "no" else "are hardly"
    low, high = 100 * pair["accuracy_low"], 100 * pair["accuracy_high"]
    return (
        f"'{one}' and '{other}' {how} told apart with these images: "
        f"{100 * pair['accuracy']:.0f}% ({low:.0f} to {high:.0f}) right of {pair['images']:,}, "
        "where 50% is guessing."
    )


def curve_sentence(curve: LearningCurve) -> str:
    """What twice the images would bring."""
    low, high = (_points(curve[end]) for end in ("gain_low", "gain_high"))
    return (
        f"With twice the training images, expect about +{_points(curve['gain'])} points of "
        f"accuracy ({low} to {high}), judged by trainings on {len(curve['points'])} amounts of "
        "them."
    )


def temperature_sentence(results: Results) -> str:
    """What the calibration error was without the temperature, or why there is none."""
    reason, before = results.get("temperature_reason"), results.get(_ERROR_BEFORE)
    if before is None:
        return f"No temperature is applied: {reason}." if reason else ""
    same = ", the same ones" if results.get("split") == "validation" else ""
    return (
        f"It was {percent(before)} before the outputs were divided by a temperature of "
        f"{results['temperature']:g}" + (f" ({reason}{same})." if reason else ".")
    )


def out_of_distribution_sentence(results: Results) -> str:
    """What tells images unlike anything seen in training, and how many others it flags."""
    if "out_of_distribution" not in results:
        return ""
    found = results["out_of_distribution"]
    if found is None:
        reason = results.get("out_of_distribution_reason")
        return f"It does not tell images unlike those of training: {reason}." if reason else ""
    sentence = (
        "An image is called unlike anything seen in training if its score, the cosine distance of "
        "its features to those of the fifth nearest training image, is above "
        f"{found['threshold']:.3g}, which "
        f"{plural(found['held_out'], 'held-out image')} set to flag at most "
        f"{percent(found['share'])} of new ones of their kind."
    )
    if found["flagged"] is None:
        return f"{sentence} No others are left to check it."
    low, high = percent(found["flagged_low"]), percent(found["flagged_high"])
    count = plural(found["images"], "image")
    by = "judged by the other folds" if results.get("split") == "folds" else "not used for that"
    return (
        f"{sentence} Of {count} {by}, {percent(found['flagged'])} were flagged ({low} to {high})."
    )


def _points(share: float) -> str:
    return f"{100 * share:.1f}" if share < 0.0995 else f"{100 * share:.0f}"
