"""The sentences claim what the figures allow, and no more."""

from typing import Any

from onsight.evaluation.statistics import wilson
from onsight.report.sentences import (
    accuracy_sentences,
    calibration_sentence,
    class_difference_sentences,
    confidence_sentence,
    is_below_average,
    is_imbalanced,
    learning_curve_sentence,
    loss_note,
    out_of_distribution_sentence,
    pair_sentence,
)


def metric(name: str, right: int, n: int) -> dict[str, float]:
    low, high = wilson(right, n)
    return {name: right / n, f"{name}_low": low, f"{name}_high": high}


def recalls(n: int, **right: int) -> list[dict[str, Any]]:
    return [{"name": k, "images": n, **metric("recall", v, n)} for k, v in right.items()]


def test_worst_class_is_judged_against_noise() -> None:
    sentences = " ".join(class_difference_sentences(recalls(1000, a=700, b=950), 0.825, 2000))
    assert "The worst class is 'a': 70.0% of its 1,000 images" in sentences
    assert "were recognised (95% CI 67.1% to 72.8%), significantly below the overall" in sentences
    assert "below the overall accuracy (marked ▼): 1 of 2." in sentences
    sentences = " ".join(class_difference_sentences(recalls(10, a=7, b=9), 0.8, 20))
    assert (
        "not significantly below the overall accuracy of 80.0% (n = 20). No class is" in sentences
    )


def test_a_loss_that_one_image_makes_up_is_called_so() -> None:
    results = {"loss": 2.299, "largest_loss": 316.0, "images": 139}
    assert loss_note(results) == "mean, n = 139; a single image makes up 98.9% of it"
    assert loss_note(results | {"largest_loss": 2.0}) == "mean, n = 139"
    assert loss_note({"loss": 2.299, "images": 139}) == "mean, n = 139"
    assert loss_note({"loss": 1e-5, "largest_loss": 9e-4, "images": 139}) == "mean, n = 139"


def test_a_class_with_hardly_any_image_is_not_judged() -> None:
    rows = [*recalls(4, a=1), *recalls(100, b=99, c=99)]
    sentences = " ".join(class_difference_sentences(rows, 0.97, 204))
    assert "The worst class is 'b'" in sentences
    assert "No class is significantly below" in sentences
    assert not is_below_average(rows[0], 0.97)  # not marked in the table either
    assert is_below_average(recalls(5, a=1)[0], 0.97)


def test_headline_is_compared_with_the_commonest_class() -> None:
    classes = [{"name": "a", "images": 90}, {"name": "b", "images": 10}]
    measured = {"images": 100, "classes": classes}
    results = {"split": "validation", **measured, **metric("accuracy", 91, 100)}
    sentences = " ".join(accuracy_sentences(results))
    assert "It classified 91 of 100 validation images correctly; it was not trained" in sentences
    assert "not significantly better than always predicting 'a'" in sentences
    assert "used to choose which epoch to keep" in sentences
    results |= {"split": "test", **metric("accuracy", 99, 100)}
    sentences = " ".join(accuracy_sentences(results))
    assert "would be correct for 90.0% of these 100" in sentences
    assert "optimistic" not in sentences


def test_the_interval_of_folds_is_called_wider_than_that_of_one_model() -> None:
    results = {"images": 100, "classes": [], "folds": 5, **metric("accuracy", 91, 100)}
    wider = "the interval is 1.5 times as wide as for a single model"  # sqrt(1 + 5 / 4)
    assert wider in " ".join(accuracy_sentences({"split": "folds", **results}))
    assert wider not in " ".join(accuracy_sentences({"split": "test", **results}))


def test_trust_is_withheld_only_beyond_noise() -> None:
    results = {"accuracy_low": 0.88, "accuracy_high": 0.92}
    start = "On average, its confidence is"
    within = f"{start} 1.0 points above its accuracy: within the margin of error."
    above = f"{start} 5.0 points above its accuracy: it is overconfident."
    below = f"{start} 5.0 points below its accuracy: it is underconfident."
    assert confidence_sentence(0.91, 0.90, results) == within
    assert (
        confidence_sentence(0.9001, 0.90, results)
        == "On average, its confidence equals its accuracy."
    )
    assert confidence_sentence(0.95, 0.90, results) == above
    assert confidence_sentence(0.85, 0.90, results) == below
    assert confidence_sentence(0.85, 0.90, {"accuracy_low": None, "accuracy_high": None}) == ""


def test_a_pair_is_told_with_its_n_and_interval() -> None:
    pair: Any = {
        "classes": ["cats", "dogs"],
        "told_apart": "no",
        "images": 84,
        "accuracy": 0.52,
        "accuracy_low": 0.41,
        "accuracy_high": 0.63,
    }
    assert pair_sentence(pair) == (
        "'cats' and 'dogs' cannot be distinguished on these images: 52% correct "
        "(95% CI 41 to 63, n = 84; chance is 50%)."
    )
    often = pair_sentence(pair | {"told_apart": "hardly"})
    assert often.startswith("'cats' and 'dogs' are often confused: 52% correct")


def test_the_calibration_error_comes_with_what_temperature_scaling_changed() -> None:
    scaled: Any = {
        "expected_calibration_error": 0.021,
        "temperature": 1.37,
        "temperature_reason": "fitted on 512 validation images",
        "expected_calibration_error_before": 0.042,
    }
    assert calibration_sentence(scaled) == (
        "Expected calibration error 2.1% (4.2% before temperature scaling; T = 1.37, fitted on 512 "
        "validation images)."
    )
    assert "images, the same ones)." in calibration_sentence(scaled | {"split": "validation"})
    none: Any = {
        "expected_calibration_error": 0.027,
        "temperature": 1.0,
        "temperature_reason": "too few images",
    }
    assert calibration_sentence(none) == (
        "Expected calibration error 2.7% (no temperature scaling: too few images)."
    )
    folds = calibration_sentence(scaled | {"split": "folds"})  # each has a temperature of its own
    assert folds == (
        "Expected calibration error 2.1% (4.2% before temperature scaling in each fold)."
    )
    assert calibration_sentence(none | {"split": "folds"}) == "Expected calibration error 2.7%."
    old: Any = {"expected_calibration_error": 0.027}
    assert calibration_sentence(old) == "Expected calibration error 2.7%."


def test_the_out_of_distribution_threshold_comes_with_its_check() -> None:
    detector: Any = {
        "threshold": 0.12345,
        "share": 0.01,
        "held_out": 607,
        "images": 1000,
        "flagged": 0.004,
        "flagged_low": 0.0016,
        "flagged_high": 0.0102,
    }
    results: Any = {
        "out_of_distribution": detector,
        "out_of_distribution_reason": "set on them",
        "split": "test",
    }
    assert out_of_distribution_sentence(results) == (
        "Out-of-distribution threshold 0.123 (cosine distance to the 5th nearest training image), "
        "set on 607 held-out images for at most 1.0% false alarms; 0.4% of 1,000 test images were "
        "flagged (95% CI 0.2% to 1.0%)."
    )
    assert "of 1,000 cross-validated images were flagged" in out_of_distribution_sentence(
        results | {"split": "folds"}
    )
    unchecked = results | {"out_of_distribution": detector | {"flagged": None, "images": 0}}
    assert out_of_distribution_sentence(unchecked).endswith(
        "false alarms; no other images are left to check it."
    )
    none: Any = {"out_of_distribution": None, "out_of_distribution_reason": "too few images"}
    assert out_of_distribution_sentence(none) == (
        "It cannot flag out-of-distribution images: too few images."
    )
    old: Any = {}
    assert out_of_distribution_sentence(old) == ""


def test_what_more_images_bring_is_told_in_points() -> None:
    curve: Any = {"gain": 0.031, "gain_low": 0.012, "gain_high": 0.049, "points": [0, 1, 2]}
    assert (
        "about +3.1 points of accuracy (95% CI 1.2 to 4.9), extrapolated"
        in learning_curve_sentence(curve)
    )
    assert "accuracy of head alone (95%" in learning_curve_sentence({**curve, "network": "head"})


def test_classes_are_unbalanced_beyond_twice_the_images() -> None:
    def rows(*images: int) -> Any:
        return [{"images": n} for n in images]

    assert is_imbalanced(rows(21, 10))
    assert not is_imbalanced(rows(20, 10, 0))
    assert not is_imbalanced([])
