"""The card that is served: what users should know, in agreement with the card that is written."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from onsight.data.fit import ImageFormat
from onsight.limits import FEW_IMAGES
from onsight.report.card_facts import limitations
from onsight.serve.descriptions import model_card


def class_row(images):
    return {
        "name": "a",
        "images": images,
        "recall": 0.9,
        "recall_low": 0.8,
        "recall_high": 0.95,
    }


def served_card(results):
    size = ImageFormat(8, 8, 3)
    runner = SimpleNamespace(metadata={"results": results})
    predictor = SimpleNamespace(runner=runner, format=size)
    model = SimpleNamespace(name="m", classes=("a", "b"), path=Path("nowhere"), predictor=predictor)
    return model_card(model, {"explain": False, "similar": False})


def served_limitations(rows):
    return served_card({"accuracy": 0.9, "images": 100, "classes": rows})["limitations"]


def written_limitations(rows):
    file = SimpleNamespace(classes=("a", "b"), format=ImageFormat(8, 8, 3))
    results = {"accuracy": None, "classes": rows, "confused_pairs": None}
    return limitations(SimpleNamespace(file=file, results=results, plan={}))


@pytest.mark.parametrize(("images", "is_few"), [(FEW_IMAGES - 1, True), (FEW_IMAGES, False)])
def test_few_images_of_a_class_are_as_many_in_both_cards(images, is_few):
    rows = [class_row(images)]
    served = " ".join(served_limitations(rows))
    written = " ".join(written_limitations(rows))
    assert (f"evaluated on fewer than {FEW_IMAGES} images" in served) == is_few
    assert (f"Fewer than {FEW_IMAGES} test images" in written) == is_few


def test_a_cross_validated_model_is_not_called_tested_on_unseen_images():
    accuracy = {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.9, "images": 770}
    card = served_card({**accuracy, "split": "folds", "folds": 5})
    explanation = " ".join(card["explanation"])
    assert (card["split"], card["folds"]) == ("folds", 5)
    assert "In 5-fold cross-validation, 616 of 770 images were classified" in explanation
    assert "The final model was trained on all 770 images" in explanation
    tested = " ".join(served_card({**accuracy, "split": "test"})["explanation"])
    assert "616 of 770 test images correctly; it was not trained on them" in tested


def test_without_held_out_images_the_accuracy_is_unknown():
    size = ImageFormat(8, 8, 1, background=(1, 2, 3))
    predictor = SimpleNamespace(runner=SimpleNamespace(), format=size)
    model = SimpleNamespace(name="m", classes=("a",), path=Path("nowhere"), predictor=predictor)
    card = model_card(model, {"explain": False, "similar": False})
    assert card["accuracy"] is None
    assert card["date"] is None
    assert card["input"]["background"] == [1, 2, 3]
    assert "accuracy is unknown" in " ".join(card["limitations"])
