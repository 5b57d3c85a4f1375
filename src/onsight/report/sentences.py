"""Sentences that interpret a run's figures and their limits; all figures have n and CI."""

from collections.abc import Sequence

from onsight.evaluation.results import ClassResult, ConfusedPair, LearningCurve, Results
from onsight.evaluation.statistics import fold_interval_ratio
from onsight.limits import MIN_EVALUATED
from onsight.text import percent, plural

_NOTABLE_LOSS = 0.1  # below, hardly any image was given a wrong class with confidence
_IMBALANCED = 2.0  # ratio of held-out images, largest class to smallest


def accuracy_sentences(results: Results) -> list[str]:
    """Explain the headline accuracy: how it was measured, and what to expect on new images."""
    accuracy, low, n = results["accuracy"], results["accuracy_low"], results["images"]
    if accuracy is None or low is None or not n:
        return [
            "There are no held-out images, so the accuracy of this classifier is unknown.",
            "Hold some out with --test-fraction, or give the data a test split.",
        ]
    folds = results["folds"] if results["split"] == "folds" else None
    correct = f"{round(accuracy * n):,}"
    sentences = [
        f"In {folds}-fold cross-validation, {correct} of {n:,} images were classified correctly, "
        "each by a model that had not seen it."
        if folds
        else f"It classified {correct} of {n:,} {results['split']} images correctly; it was not "
        "trained on them.",
        f"On new images of the same kind, expect an accuracy between {percent(low)} and "
        f"{percent(results['accuracy_high'])} (95% CI).",
    ]
    if folds:
        learned = (
            f"only some of these {n:,} images, as there was no time for more, or selected with "
            "them, so none are left to test it."
            if results.get("left_out")
            else f"all {n:,} images, or selected with them, so none are left to test it. It "
            f"learned from more images than the {folds} cross-validated models, so it is probably "
            "no worse."
        )
        sentences += [
            f"The final model was trained on {learned}",
            "Because the cross-validated models share most of their training images, the interval "
            f"is {fold_interval_ratio(folds):.2g} times as wide as for a single model.",
        ]
    if results["classes"]:
        sentences.append(most_frequent_sentence(results))
    if results["split"] == "validation":
        sentences.append(
            "These images were also used to choose which epoch to keep, so the accuracy is "
            "slightly optimistic; a test split would avoid that."
        )
    return sentences


def most_frequent_sentence(results: Results) -> str:
    """Compare a classifier with one that always predicts the most frequent class."""
    commonest = _most_frequent(results)
    n = results["images"]
    share = percent(commonest["images"] / n)
    baseline = f"always predicting '{commonest['name']}', the most frequent class"
    if is_better_than_most_frequent(results):
        return f"For comparison, {baseline}, would be correct for {share} of these {n:,}."
    return (
        f"It is not significantly better than {baseline}, which would be correct for {share} of "
        f"these {n:,}."
    )


def is_better_than_most_frequent(results: Results) -> bool:
    """Return whether the accuracy is significantly above the share of the most frequent class.

    Nothing speaks against it if there are no images.
    """
    low, n = results["accuracy_low"], results["images"]
    if not n or low is None or not results["classes"]:
        return True
    return low > _most_frequent(results)["images"] / n


def class_difference_sentences(
    worst_first: Sequence[ClassResult], accuracy: float | None, n: int
) -> list[str]:
    """State whether the classes differ by more than chance explains."""
    tested = [row for row in worst_first if row["images"] and row["images"] >= MIN_EVALUATED]
    if accuracy is None or len(tested) < 2:
        return []
    worst, below = tested[0], [row for row in tested if is_below_average(row, accuracy)]
    overall = f"overall accuracy of {percent(accuracy)} (n = {n:,})"
    sentence = (
        f"The worst class is '{worst['name']}': {percent(worst['recall'])} of its "
        f"{worst['images']:,} images were recognised (95% CI {percent(worst['recall_low'])} to "
        f"{percent(worst['recall_high'])}), {'' if worst in below else 'not '}significantly below "
        f"the {overall}."
    )
    if not below:
        return [sentence, "No class is significantly below the overall accuracy."]
    return [
        sentence,
        "Classes whose whole interval is below the overall accuracy (marked ▼): "
        f"{len(below)} of {len(tested)}. If all classes were equally hard, chance alone would put "
        f"about {0.025 * len(tested):.2g} there.",
    ]


def is_below_average(row: ClassResult, accuracy: float | None) -> bool:
    """Return whether the whole interval of a class's recall is below the overall accuracy."""
    high, images = row["recall_high"], row["images"]
    if accuracy is None or high is None:
        return False
    return images >= MIN_EVALUATED and high < accuracy


def is_imbalanced(classes: Sequence[ClassResult]) -> bool:
    """Return whether the largest class has over twice the held-out images of the smallest."""
    images = [row["images"] for row in classes if row["images"]]
    return bool(images) and max(images) > _IMBALANCED * min(images)


def confidence_sentence(confidence: float, accuracy: float, results: Results) -> str:
    """State whether mean confidence matches accuracy; empty if there is no interval to compare."""
    low, high = results["accuracy_low"], results["accuracy_high"]
    if low is None or high is None:
        return ""
    difference = 100 * abs(confidence - accuracy)
    side, verdict = ("above", "over") if confidence > accuracy else ("below", "under")
    if difference < 0.05:
        return "On average, its confidence equals its accuracy."
    sentence = f"On average, its confidence is {difference:.1f} points {side} its accuracy: "
    if abs(confidence - accuracy) <= (high - low) / 2:
        return f"{sentence}within the margin of error."
    return f"{sentence}it is {verdict}confident."


def calibration_sentence(results: Results) -> str:
    """Return the expected calibration error, and the effect of temperature scaling on it."""
    error = percent(results["expected_calibration_error"])
    before = results.get("expected_calibration_error_before")
    reason = results.get("temperature_reason")
    if results.get("split") == "folds":  # the temperature on record is that of the final model
        scaled = f" ({percent(before)} before temperature scaling in each fold)"
        note = scaled if before is not None else ""
    elif before is not None:
        same_images = ", the same ones" if results.get("split") == "validation" else ""
        details = f"T = {results['temperature']:g}" + (f", {reason}{same_images}" if reason else "")
        note = f" ({percent(before)} before temperature scaling; {details})"
    else:
        note = f" (no temperature scaling: {reason})" if reason else ""
    return f"Expected calibration error {error}{note}."


def loss_note(results: Results) -> str:
    """Return the n of the mean loss, and the share of one image if that is more than half of it."""
    loss, largest, n = results["loss"], results.get("largest_loss"), results["images"]
    note = f"mean, n = {n:,}"
    if not loss or not largest or loss < _NOTABLE_LOSS or largest < loss * n / 2:
        return note
    return f"{note}; a single image makes up {percent(largest / (loss * n))} of it"


def pair_sentence(pair: ConfusedPair) -> str:
    """State the rate at which two classes are confused, with n, interval and the chance level."""
    first, second = pair["classes"]
    indistinguishable = pair["told_apart"] == "no"
    how = "cannot be distinguished on these images" if indistinguishable else "are often confused"
    low, high = 100 * pair["accuracy_low"], 100 * pair["accuracy_high"]
    return (
        f"'{first}' and '{second}' {how}: {100 * pair['accuracy']:.0f}% correct "
        f"(95% CI {low:.0f} to {high:.0f}, n = {pair['images']:,}; chance is 50%)."
    )


def learning_curve_sentence(curve: LearningCurve) -> str:
    """Estimate the gain from twice as many training images."""
    low, high = (_points(curve[end]) for end in ("gain_low", "gain_high"))
    of = f" of {curve['network']} alone" if "network" in curve else ""
    return (
        f"With twice the training images, expect about +{_points(curve['gain'])} points of "
        f"accuracy{of} (95% CI {low} to {high}), extrapolated from a learning curve of "
        f"{plural(len(curve['points']), 'point')}."
    )


def out_of_distribution_sentence(results: Results) -> str:
    """State the threshold of the out-of-distribution score, and how many test images it flags."""
    if "out_of_distribution" not in results:
        return ""
    detector = results["out_of_distribution"]
    if detector is None:
        reason = results.get("out_of_distribution_reason")
        return f"It cannot flag out-of-distribution images: {reason}." if reason else ""
    threshold = (
        f"Out-of-distribution threshold {detector['threshold']:.3g} (cosine distance to the 5th "
        f"nearest training image), set on {plural(detector['held_out'], 'held-out image')} for at "
        f"most {percent(detector['share'])} false alarms"
    )
    if detector["flagged"] is None:
        return f"{threshold}; no other images are left to check it."
    low, high = percent(detector["flagged_low"]), percent(detector["flagged_high"])
    which = {"folds": "cross-validated image", "test": "test image"}
    images = plural(detector["images"], which.get(results.get("split", ""), "other held-out image"))
    return (
        f"{threshold}; {percent(detector['flagged'])} of {images} were flagged "
        f"(95% CI {low} to {high})."
    )


def _most_frequent(results: Results) -> ClassResult:
    return max(results["classes"], key=lambda row: row["images"] or 0)


def _points(share: float) -> str:
    return f"{100 * share:.1f}" if share < 0.0995 else f"{100 * share:.0f}"
