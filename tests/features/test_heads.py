"""Oracle: scikit-learn's logistic regression and nearest centroid, in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid

from onsight.features import heads
from onsight.features.choose_head import choose_head
from onsight.features.heads import (
    HeadSettings,
    HiddenSettings,
    LabelledFeatures,
    LinearHead,
    Standardization,
    fit_class_means,
    fit_logistic,
)

CLASSES = 4


def clouds(count, features=20, distance=0.4, seed=0):
    """Overlapping clouds of float64 features around a centre for each class, with labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, features, generator=torch.Generator().manual_seed(99)) * distance
    labels = torch.arange(count) % CLASSES
    noise = torch.randn(count, features, generator=generator)
    return (centres[labels] + noise).double(), labels


def labelled(features, labels):
    return LabelledFeatures(features[None], labels)


@pytest.mark.parametrize("penalty", [1.0, 0.03, 0.001])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_logistic_regression_is_scikit_learns(penalty, is_weighted):
    features, labels = clouds(200)
    weights = torch.linspace(0.2, 1.8, 200).double() if is_weighted else None
    head = fit_logistic(
        features.split(70),
        labels,
        LinearHead.zeros(CLASSES, features),
        penalty,
        weights,
        iterations=1000,
    )
    oracle = LogisticRegression(C=1 / (200 * penalty), tol=1e-9, max_iter=5000)
    oracle.fit(features.numpy(), labels.numpy(), None if weights is None else weights.numpy())
    logits = head(features)
    expected = torch.from_numpy(oracle.predict_proba(features.numpy()))
    assert torch.allclose(head.weight, torch.from_numpy(oracle.coef_), atol=2e-3 * penalty**-0.5)
    assert torch.allclose(logits.softmax(dim=1), expected, atol=1e-3)


def test_a_warm_start_leads_to_the_same_head():
    features, labels = clouds(200)
    cold = fit_logistic(
        [features], labels, LinearHead.zeros(CLASSES, features), 0.01, iterations=1000
    )
    other = fit_logistic([features], labels, LinearHead.zeros(CLASSES, features), 1.0)
    warm = fit_logistic([features], labels, other, 0.01, iterations=1000)
    assert torch.allclose(cold.weight, warm.weight, atol=1e-4)


def test_class_means_are_scikit_learns_nearest_centroid():
    features, labels = clouds(100)
    head = fit_class_means(features.split(30), labels, CLASSES)
    oracle = NearestCentroid().fit(features.numpy(), labels.numpy())
    unseen, _ = clouds(500, seed=5)
    assert np.array_equal(head(unseen).argmax(1).numpy(), oracle.predict(unseen.numpy()))


def test_a_class_without_images_is_never_nearest():
    features, labels = clouds(40)
    some = labels != 2
    head = fit_class_means([features[some]], labels[some], CLASSES)
    assert not (head(features).argmax(1) == 2).any()


def test_a_folded_head_gives_the_same_logits_for_plain_features():
    features, _ = clouds(50)
    features = features * 7 + 3
    features[:, 4] = 2.5  # never varies
    scale = Standardization.of(features)
    head = LinearHead(torch.randn(CLASSES, 20).double(), torch.randn(CLASSES).double())
    assert torch.allclose(scale.fold(head)(features), head(scale.apply(features)))
    standard = scale.apply(features)
    varied = [column for column in range(20) if column != 4]
    assert torch.allclose(standard.std(dim=0, correction=0)[varied], torch.ones(19).double())


@pytest.mark.parametrize("settings", [HeadSettings(0.01), HeadSettings(None), HiddenSettings(0)])
def test_float16_features_are_fitted_like_float32_ones_however_they_are_divided(
    settings, monkeypatch
):
    features, labels = clouds(200)
    features = features.half().float() * 3 + 5
    whole = settings.fit(labelled(features, labels), CLASSES)
    monkeypatch.setattr(heads, "_BLOCK", 64)
    monkeypatch.setattr(heads, "_MAX_CONVERTED", 1000)
    halves = labelled(features.half(), labels)
    divided = settings.fit(halves, CLASSES)
    expected, found = whole(features), heads.compute_logits(divided, halves.views[0])
    assert found.dtype == torch.float32
    assert (expected - found).abs().max() < 0.02 * expected.abs().max()


def test_many_features_are_not_kept_in_float32(monkeypatch):
    features, _ = clouds(200)
    scale = heads.Standardization.of(features.half())
    assert heads.StandardisedFeatures(features.half(), scale)._converted is not None
    monkeypatch.setattr(heads, "_MAX_CONVERTED", features.numel() - 1)
    many = heads.StandardisedFeatures(features.half(), scale)
    assert many._converted is None
    assert torch.cat(list(many)).mean(dim=0).abs().max() < 1e-2


def test_many_validation_images_judge_alone():
    train, validation = clouds(200), clouds(120, seed=1)
    chosen = choose_head(labelled(*train), labelled(*validation), CLASSES)
    assert torch.equal(chosen.labels, validation[1])
    head = chosen.settings.fit(labelled(*train), CLASSES)
    right = int((head(validation[0]).argmax(1) == validation[1]).sum())
    assert abs(chosen.correct - right) <= 3  # chosen with fewer iterations


def test_few_validation_images_are_judged_with_the_others_by_folds():
    train, validation = clouds(90), clouds(20, seed=1)
    chosen = choose_head(labelled(*train), labelled(*validation), CLASSES)
    assert len(chosen.labels) == 110
    assert "3-fold" in chosen.method
    assert torch.equal(chosen.labels.bincount(), torch.cat([train[1], validation[1]]).bincount())


def test_no_image_is_judged_by_a_head_that_it_trained():
    """Features that are unique to each image can be learned by heart, but tell no class."""
    features, labels = torch.eye(120).double(), torch.arange(120) % CLASSES
    chosen = choose_head(labelled(features, labels), labelled(features[:0], labels[:0]), CLASSES)
    assert chosen.correct / 120 < 0.45


def test_noise_is_penalised_more_than_a_signal():
    noise, labels = clouds(300, features=200, distance=0.0)
    weak = choose_head(labelled(noise, labels), labelled(*clouds(0, features=200)), CLASSES)
    features, labels = clouds(300, features=5, distance=2.0)
    strong = choose_head(labelled(features, labels), labelled(*clouds(0, features=5)), CLASSES)
    assert weak.settings.penalty is None or weak.settings.penalty >= 0.3
    assert strong.settings.penalty is not None
    assert strong.settings.penalty <= 0.1


def test_all_views_are_fitted_and_the_plain_one_is_judged():
    features, labels = clouds(150)
    views = LabelledFeatures(torch.stack([features, features + 100]), labels)
    plain = HeadSettings(0.01).fit(labelled(features, labels), CLASSES)
    both = HeadSettings(0.01).fit(views, CLASSES)
    assert not torch.allclose(plain.weight, both.weight, atol=1e-3)
    chosen = choose_head(views, labelled(*clouds(120, seed=1)), CLASSES)
    assert chosen.correct > 60


def rings(count, seed=0):
    """Two classes at two distances from the middle, which no plane separates, in 6 dimensions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    directions = F.normalize(torch.randn(count, 6, generator=generator), dim=1)
    radii = 1.0 + labels + 0.2 * torch.randn(count, generator=generator)
    return directions * radii.unsqueeze(1) + 3.0, labels


def test_a_hidden_layer_learns_what_no_plane_separates():
    train, unseen = rings(1500), rings(500, seed=1)
    head = HiddenSettings(0).fit(labelled(*train), 2)
    right = (head(unseen[0]).argmax(dim=1) == unseen[1]).float().mean()
    plane = HeadSettings(0.01).fit(labelled(*train), 2)
    assert (plane(unseen[0]).argmax(dim=1) == unseen[1]).float().mean() < 0.65
    assert right > 0.85


@pytest.fixture
def few_steps(monkeypatch):
    """A hidden layer learns little, where it is only compared with another."""
    monkeypatch.setattr(heads, "_MIN_STEPS", 50)


def test_a_hidden_layer_is_a_function_of_features_and_seed(few_steps):
    features, labels = clouds(300)
    data = LabelledFeatures(torch.stack([features, features + 0.1]), labels)
    state = torch.get_rng_state()
    heads = [HiddenSettings(seed).fit(data, CLASSES) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(heads[0].first.weight, heads[1].first.weight)
    assert torch.equal(heads[0](features), heads[1](features))
    assert not torch.equal(heads[0].first.weight, heads[2].first.weight)


def test_a_hidden_layer_takes_plain_features_of_any_scale(few_steps):
    features, labels = rings(600)
    plain = HiddenSettings(0).fit(labelled(features, labels), 2)
    scaled = HiddenSettings(0).fit(labelled(features * 100 + 50, labels), 2)
    assert torch.allclose(plain(features), scaled(features * 100 + 50), atol=0.05)


def test_every_view_teaches_a_hidden_layer():
    features, labels = clouds(600, distance=1.0)
    noise, _ = clouds(600, distance=0.0, seed=3)
    alone = HiddenSettings(0).fit(labelled(noise, labels), CLASSES)
    both = HiddenSettings(0).fit(LabelledFeatures(torch.stack([noise, features]), labels), CLASSES)
    unseen, truth = clouds(500, distance=1.0, seed=1)
    right = [int((head(unseen).argmax(dim=1) == truth).sum()) for head in (alone, both)]
    assert right[0] < 300 < 450 < right[1]


def test_class_weights_count_in_a_hidden_layer():
    noise, labels = clouds(400, distance=0.0)
    weights = torch.tensor([5.0, 1.0, 1.0, 1.0]).double()
    head = HiddenSettings(0).fit(labelled(noise, labels), CLASSES, weights)
    unseen, _ = clouds(400, distance=0.0, seed=1)
    assert (head(unseen).argmax(dim=1) == 0).float().mean() > 0.8
