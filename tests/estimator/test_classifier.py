"""Oracle: scikit-learn, whose tools must accept a Classifier."""

import copy
import io
import sys

import joblib
import numpy as np
import pytest
import sklearn.exceptions
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_get_params_invariance
from sklearn.utils.validation import check_is_fitted
from torch import nn

import onsight
from onsight import estimator
from onsight.errors import ArgumentError, Interrupted, NotFitted, UserError

FAST = {"epochs": 3, "image_size": 16, "flip": False, "batch_size": 16, "threads": 1}
FAST |= {"plan": "default", "model": "lenet", "learning_rate": 0.003}


@pytest.fixture(scope="module")
def digits():
    """Three of the digits: floats (n, 8, 8) from 0 to 1, and labels."""
    images, labels = load_digits(n_class=3, return_X_y=True)
    return images.reshape(-1, 8, 8)[:240] / 16, labels[:240]


@pytest.fixture(scope="module")
def fitted(digits, common_cache):
    """Fitted to the first 160 digits; nobody changes it."""
    images, labels = digits
    return onsight.Classifier(**FAST).fit(images[:160], labels[:160])


def test_it_learns_and_keeps_the_type_of_its_labels(fitted, digits):
    images, labels = digits[0][160:], digits[1][160:]
    predicted = fitted.predict(images)
    assert predicted.dtype == labels.dtype
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert fitted.score(images, labels) == accuracy_score(labels, predicted) > 0.8
    rows = fitted.predict_proba(images)
    assert rows.shape == (80, 3)
    assert np.allclose(rows.sum(axis=1), 1, atol=1e-6)
    assert np.array_equal(fitted.classes_[rows.argmax(axis=1)], predicted)
    assert log_loss(labels, rows) < 0.7
    assert fitted.predict([]).shape == (0,)
    assert fitted.run_.results["split"] == "validation"
    check_is_fitted(fitted)


def test_columns_follow_the_order_of_the_classes_of_y(digits):
    images, labels = digits[0][:60], digits[1][:60]
    numbers = np.array([2, 10, 9])  # a run orders them 2, 9, 10, as classes_ does
    by_number = onsight.Classifier(**FAST | {"epochs": 1}).fit(images, numbers[labels])
    assert by_number.classes_.tolist() == [2, 9, 10]
    words = np.array(["b", "é", "a"], object)  # in the order of 0, 1, 2: b, é, a
    by_word = onsight.Classifier(**FAST | {"epochs": 1}).fit(images, words[labels].tolist())
    assert by_word.classes_.tolist() == ["a", "b", "é"]
    floats = onsight.Classifier(**FAST | {"epochs": 1}).fit(images, labels.astype(float) * 5)
    assert floats.classes_.tolist() == [0.0, 5.0, 10.0]  # named "0.0", "10.0", "5.0" in the run
    for model in (by_number, by_word, floats):
        names = model.run_.results["classes"]
        predictor = onsight.load(model.run_.path)
        assert [row["name"] for row in names] == list(predictor.classes)
        places = [
            [str(label) for label in model.classes_].index(name) for name in predictor.classes
        ]
        expected = predictor.predict_proba(list(images))
        assert np.array_equal(model.predict_proba(images)[:, places], expected)


def test_scikit_learn_accepts_it(digits):
    images, labels = digits
    model = onsight.Classifier(**FAST | {"epochs": 1})
    assert is_classifier(model)
    assert get_tags(model).input_tags.three_d_array
    check_get_params_invariance("Classifier", model)
    copied = clone(model)
    assert copied is not model
    assert copied.get_params() == model.get_params()
    assert repr(copied) == repr(model)
    pipeline = make_pipeline(FunctionTransformer(lambda images: images / 16), model)
    pipeline.set_params(classifier__epochs=2).fit(images * 16, labels)
    check_is_fitted(pipeline)
    direct = onsight.Classifier(**FAST | {"epochs": 2}).fit(images, labels)
    assert np.array_equal(pipeline.predict_proba(images * 16), direct.predict_proba(images))
    assert "Classifier" in pipeline._repr_html_()


def test_cross_validation_and_a_search(digits):
    images, labels = digits
    scores = cross_val_score(onsight.Classifier(**FAST), images, labels, cv=2, error_score="raise")
    assert scores.min() > 0.7
    search = GridSearchCV(
        onsight.Classifier(**FAST), {"epochs": [1, 3]}, cv=2, error_score="raise"
    ).fit(list(images), [f"digit {label}" for label in labels])
    assert search.best_params_ == {"epochs": 3}
    assert search.predict(images[:1]).tolist() == [f"digit {labels[0]}"]


def test_a_fitted_classifier_can_be_copied_and_stored_without_its_folder(fitted, digits):
    stored = io.BytesIO()
    joblib.dump(fitted, stored)
    stored.seek(0)
    expected = fitted.predict_proba(digits[0])
    for other in (joblib.load(stored), copy.deepcopy(fitted)):
        other.run_ = None
        assert np.array_equal(other.predict_proba(digits[0]), expected)


def test_the_temporary_folder_lasts_as_long_as_the_object(digits, tmp_path):
    images, labels = digits[0][:60], digits[1][:60]
    model = onsight.Classifier(**FAST | {"epochs": 1}).fit(images, labels)
    folder = model.run_.path
    assert (folder / "results.json").is_file()
    del model
    assert not folder.exists()
    kept = onsight.Classifier(out=tmp_path / "run", **FAST | {"epochs": 1}).fit(images, labels)
    assert kept.run_.path == tmp_path / "run"
    with pytest.raises(ArgumentError, match="already holds files"):
        kept.fit(images, labels)


def test_the_users_network_is_not_changed(digits):
    images, labels = digits[0][:60], digits[1][:60]
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 3))
    before = copy.deepcopy(net.state_dict())
    model = onsight.Classifier(**FAST | {"epochs": 1, "model": net}).fit(images, labels)
    assert all((net.state_dict()[name] == tensor).all() for name, tensor in before.items())
    again = clone(model).fit(images, labels)
    expected = model.predict_proba(images)
    assert np.array_equal(again.predict_proba(images), expected)
    assert np.array_equal(copy.deepcopy(model).predict_proba(images), expected)


def test_epochs_replace_the_default_budget(monkeypatch, digits):
    fields_passed = {}

    def note(data, **fields):
        fields_passed.update(fields)
        raise UserError("enough")

    monkeypatch.setattr(estimator, "train", note)
    for given, budget in (({}, "60s"), ({"epochs": 2}, ""), ({"budget": "2m", "epochs": 2}, "2m")):
        with pytest.raises(ArgumentError, match="enough"):
            onsight.Classifier(**given).fit(*digits)
        assert fields_passed["budget"] == budget
        assert fields_passed["test_fraction"] == 0.0


def test_ctrl_c_ends_a_whole_search(monkeypatch, digits):
    def stop(data, **fields):
        raise Interrupted("stopped", 2)

    monkeypatch.setattr(estimator, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        cross_val_score(onsight.Classifier(), *digits, cv=2)


def test_predicting_before_fitting_is_scikit_learns_own_error_if_it_is_there(monkeypatch, digits):
    with pytest.raises(sklearn.exceptions.NotFittedError, match="call fit"):
        onsight.Classifier().predict(digits[0])
    monkeypatch.delitem(sys.modules, "sklearn.exceptions")
    with pytest.raises(NotFitted, match="call fit") as raised:
        onsight.Classifier().predict(digits[0])
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, AttributeError)


IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 8), np.uint8)
LABELS = [0, 1, 2] * 4


@pytest.mark.parametrize(
    ("images", "labels", "reason"),
    [
        (IMAGES, LABELS[:-1], "12 images, but 11 labels"),
        (IMAGES, [1] * 12, "y has only one class, 1"),
        (IMAGES, [*LABELS[:-2], np.nan, np.nan], "2 missing labels .* the first in row 10"),
        (IMAGES, [*map(str, LABELS[:-1]), None], "1 missing label "),
        (IMAGES, np.linspace(0, 1, 12), "classes, not measurements"),
        (IMAGES, np.eye(12), r"y has shape \(12, 12\); it must have one label per image"),
        (IMAGES, None, r"y has shape \(\)"),
        (IMAGES, np.array([*LABELS[:-1], "2"], object), "several types"),
        (IMAGES, ["é", "e\u0301"] * 6, "Unicode"),
        ([], [], "there are no images"),
        (IMAGES.reshape(12, 64), LABELS, r"shape \(12, 64\) are rows"),
        (IMAGES.astype(float), LABELS, "must be from 0 to 1"),
        ([*IMAGES[:11], IMAGES[11] / 255], LABELS, "item 11 is float64"),
        ([f"{number}.png" for number in range(12)], LABELS, "none of the 12 images"),
        ("image.png", LABELS, "a str is not several images"),
        (None, LABELS, "a NoneType is not several images"),
    ],
)
def test_what_cannot_be_fitted_is_a_value_error_and_leaves_nothing(
    images, labels, reason, tmp_path
):
    model = onsight.Classifier(out=tmp_path / "run", **FAST)
    with pytest.raises(ArgumentError, match=reason) as raised:
        model.fit(images, labels)
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, UserError)
    assert not hasattr(model, "classes_")
    assert not (tmp_path / "run").exists()


def test_other_arguments_are_checked_too(fitted, digits):
    with pytest.raises(ArgumentError, match=r"has no 'epoch'. Did you mean epochs"):
        onsight.Classifier(epoch=3)
    model = onsight.Classifier(epochs=3)
    with pytest.raises(ArgumentError, match="has no 'lr'"):
        model.set_params(budget="5s", lr=3)
    assert model.get_params() == {"budget": None, "out": None, "verbose": False, "epochs": 3}
    assert repr(model.set_params(budget="5s")) == "Classifier(budget='5s', epochs=3)"
    with pytest.raises(ArgumentError, match=r"sample_weight.*class_weights"):
        model.fit(*digits, sample_weight=digits[1])
    with pytest.raises(ArgumentError, match="--epochs"):
        onsight.Classifier(epochs=0).fit(*digits)
    with pytest.raises(ArgumentError, match="other processes"):
        onsight.Classifier(**FAST, ranks=2).fit(*digits)
    with pytest.raises(ArgumentError, match="must be from 0 to 1"):
        fitted.predict(digits[0] * 16)
    with pytest.raises(ArgumentError, match="are rows"):
        fitted.predict(digits[0].reshape(-1, 64))
    with pytest.raises(ArgumentError, match="a str is not several"):
        fitted.predict_proba("a.png")
    with pytest.raises(ArgumentError, match="240 images, but y has shape"):
        fitted.score(digits[0], digits[1][:-1])
