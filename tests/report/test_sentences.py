"""The sentences claim what the figures allow, and no more."""

from typing import Any

from onsight.evaluation.statistics import wilson
from onsight.report.sentences import (
    curve_sentence,
    is_unbalanced,
    meaning,
    noise_sentences,
    out_of_distribution_sentence,
    pair_sentence,
    temperature_sentence,
    trust,
)


def metric(name: str, right: int, n: int) -> dict[str, float]:
    low, high = wilson(right, n)
    return {name: right / n, f"{name}_low": low, f"{name}_high": high}


def recalls(n: int, **right: int) -> list[dict[str, Any]]:
    return [{"name": k, "images": n, **metric("recall", v, n)} for k, v in right.items()]


def test_worst_class_is_judged_against_noise() -> None:
    sentences = " ".join(noise_sentences(recalls(1000, a=700, b=950), 0.825, 2000))
    assert "The worst class is 'a': 70.0% of its 1,000 images" in sentences
    assert "more than noise" in sentences
    assert "below the overall accuracy (marked ▼): 1 of 2." in sentences
    sentences = " ".join(noise_sentences(recalls(10, a=7, b=9), 0.8, 20))
    assert "it may be noise. No class is clearly worse" in sentences


def test_headline_is_compared_with_the_commonest_class() -> None:
    classes = [{"name": "a", "images": 90}, {"name": "b", "images": 10}]
    results = {"images": 100, "split": "validation", **metric("accuracy", 91, 100)}
    sentences = " ".join(meaning(results, classes))
    assert (
        "Of 100 validation images that it was not trained on, it classified 91 correctly."
        in sentences
    )
    assert "not been shown to beat always answering 'a'" in sentences
    assert "used to choose which epoch to keep" in sentences
    results |= {"split": "test", **metric("accuracy", 99, 100)}
    sentences = " ".join(meaning(results, classes))
    assert "would be right for 90.0% of these 100" in sentences
    assert "optimistic" not in sentences


def test_trust_is_withheld_only_beyond_noise() -> None:
    results = {"accuracy_low": 0.88, "accuracy_high": 0.92}
    assert trust(0.91, 0.90, results) == "Within noise, its confidence matches its accuracy."
    assert trust(0.95, 0.90, results) == "It is overconfident."
    assert trust(0.85, 0.90, results) == "It is underconfident."
    assert trust(0.85, 0.90, {"accuracy_low": None, "accuracy_high": None}) == ""


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
        "'cats' and 'dogs' cannot be told apart with these images: 52% (41 to 63) right of 84, "
        "where 50% is guessing."
    )
    assert "are hardly told apart" in pair_sentence(pair | {"told_apart": "hardly"})


def test_a_temperature_is_told_with_what_it_changed_or_why_there_is_none() -> None:
    fitted: Any = {
        "temperature": 1.37,
        "temperature_reason": "fitted on 512 validation images",
        "expected_calibration_error_before": 0.042,
    }
    assert temperature_sentence(fitted) == (
        "It was 4.2% before the outputs were divided by a temperature of 1.37 (fitted on 512 "
        "validation images)."
    )
    assert "images, the same ones)." in temperature_sentence(fitted | {"split": "validation"})
    none: Any = {"temperature": 1.0, "temperature_reason": "too few images"}
    assert temperature_sentence(none) == "No temperature is applied: too few images."
    old: Any = {}
    assert temperature_sentence(old) == ""


def test_what_tells_unlike_images_is_told_with_its_check() -> None:
    found: Any = {
        "threshold": 0.12345,
        "share": 0.01,
        "held_out": 607,
        "images": 1000,
        "flagged": 0.004,
        "flagged_low": 0.0016,
        "flagged_high": 0.0102,
    }
    told: Any = {
        "out_of_distribution": found,
        "out_of_distribution_reason": "set on them",
        "split": "test",
    }
    assert out_of_distribution_sentence(told) == (
        "An image is called unlike anything seen in training if its score, the cosine distance of "
        "its features to those of the fifth nearest training image, is above 0.123, which 607 "
        "held-out images set to flag at most 1.0% of new ones of their kind. Of 1,000 images "
        "not used for that, 0.4% were flagged (0.2% to 1.0%)."
    )
    assert "images judged by the other folds" in out_of_distribution_sentence(
        told | {"split": "folds"}
    )
    unchecked = told | {"out_of_distribution": found | {"flagged": None, "images": 0}}
    assert out_of_distribution_sentence(unchecked).endswith(
        "their kind. No others are left to check it."
    )
    none: Any = {"out_of_distribution": None, "out_of_distribution_reason": "too few images"}
    assert out_of_distribution_sentence(none) == (
        "It does not tell images unlike those of training: too few images."
    )
    old: Any = {}
    assert out_of_distribution_sentence(old) == ""


def test_what_more_images_bring_is_told_in_points() -> None:
    curve: Any = {"gain": 0.031, "gain_low": 0.012, "gain_high": 0.049, "points": [0, 1, 2]}
    assert "about +3.1 points of accuracy (1.2 to 4.9)" in curve_sentence(curve)


def test_classes_are_unbalanced_beyond_twice_the_images() -> None:
    def rows(*images: int) -> Any:
        return [{"images": n} for n in images]

    assert is_unbalanced(rows(21, 10))
    assert not is_unbalanced(rows(20, 10, 0))
    assert not is_unbalanced([])
