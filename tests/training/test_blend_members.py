"""Planted logits of two members; oracle: weights and probabilities by hand, in float64."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from onsight.config import make_config
from onsight.evaluation.blending import choose_weights
from onsight.evaluation.predictions import HeldOutLogits, concatenate_tables
from onsight.evaluation.temperature import choose_temperature
from onsight.models.classifier import Classifier
from onsight.ranks.world import World
from onsight.training.blend_members import FinalModel, blend_folds, blend_members
from onsight.training.evaluate import Evaluation
from onsight.training.fit import Trained
from onsight.training.members import Member

CLASSES, IMAGES, FOLDS = 4, 300, 3
TEMPERATURES = {"calm": 1.0, "sure": 4.0}
FOLD_OF = (torch.arange(IMAGES) % FOLDS + 1).to(torch.int8)


@pytest.fixture
def held_out():
    """The raw logits of two members of equal skill; one is four times too sure in the last fold."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (IMAGES,), generator=generator)
    truth = 2 * torch.nn.functional.one_hot(labels, CLASSES).float()
    rows = {}
    for name, temperature in TEMPERATURES.items():
        noise = torch.randn(IMAGES, CLASSES, generator=generator)
        skill = 1.0 - 2.0 * ((FOLD_OF == FOLDS) & (name == "sure"))  # wrong in the last fold
        logits = temperature * (skill[:, None] * truth + noise)
        rows[name] = HeldOutLogits(torch.arange(IMAGES), logits, labels)
    return rows


def make_member(name, rows, with_folds):
    classifier = Classifier(torch.nn.Identity(), None, "fp32", torch.device("cpu"))
    classifier.temperature = TEMPERATURES[name]
    nothing = SimpleNamespace(value=None, reason="")
    trained = Trained(classifier, None, nothing, nothing, {}, rows)
    folds = None
    if with_folds:
        tables = [rows.take(fold == FOLD_OF).tabulate() for fold in range(1, FOLDS + 1)]
        facts = tuple({"fold": fold, "seconds": 1.0} for fold in range(1, FOLDS + 1))
        folds = Evaluation(concatenate_tables(tables), None, "folds", facts)
    return Member(name, make_config({"model": name}), None, trained, folds, 1.0, 0.001)


def calibrated(held_out, part=slice(None)):
    return {name: rows.logits[part] / TEMPERATURES[name] for name, rows in held_out.items()}


def logs(logits):
    return {name: values.log_softmax(dim=1) for name, values in logits.items()}


def test_weights_are_chosen_for_calibrated_members(held_out):
    members = [make_member(name, rows, with_folds=False) for name, rows in held_out.items()]
    opened = SimpleNamespace(config=make_config({}))
    job = SimpleNamespace(world=World(), reporter=None)
    final = blend_members(members, opened, job)
    expected = choose_weights(logs(calibrated(held_out)), held_out["calm"].labels)
    assert final.weights == pytest.approx(expected)
    raw = {name: rows.logits for name, rows in held_out.items()}
    assert expected != pytest.approx(choose_weights(logs(raw), held_out["calm"].labels))


def test_each_fold_is_blended_as_the_others_suggest(held_out):
    members = tuple(make_member(name, rows, with_folds=True) for name, rows in held_out.items())
    final = FinalModel(members[0].classifier, members, {"calm": 0.5, "sure": 0.5}, None, None)
    found = blend_folds(final, FOLD_OF.numpy(), make_config({})).per_image
    labels = held_out["calm"].labels
    for fold in range(1, FOLDS + 1):
        others, inside = fold != FOLD_OF, fold == FOLD_OF
        weights = choose_weights(logs(calibrated(held_out, others)), labels[others])
        means = []
        for part in (others, inside):
            parts = calibrated(held_out, part)
            means.append(
                sum(
                    weight * parts[name].double().softmax(dim=1) for name, weight in weights.items()
                )
            )
        temperature = choose_temperature(means[0].log().float(), labels[others]).value
        expected = (means[1].log() / temperature).softmax(dim=1).max(dim=1).values
        assert np.allclose(found.confidence[inside.numpy()], expected.numpy(), atol=1e-5)


def test_the_best_member_is_chosen_on_the_other_folds_too(held_out):
    members = tuple(make_member(name, rows, with_folds=True) for name, rows in held_out.items())
    opened = SimpleNamespace(config=make_config({"blend": "off"}))
    final = blend_members(members, opened, SimpleNamespace(world=World(), reporter=None))
    found = blend_folds(final, FOLD_OF.numpy(), opened.config).per_image
    chosen = set()
    for fold in range(1, FOLDS + 1):
        losses = {
            name: torch.nn.functional.cross_entropy(logits, held_out[name].labels[fold != FOLD_OF])
            for name, logits in calibrated(held_out, fold != FOLD_OF).items()
        }
        best = min(losses, key=losses.get)
        inside = fold == FOLD_OF
        expected = held_out[best].logits[inside].argmax(dim=1)
        assert np.array_equal(found.predicted[inside.numpy()[found.ids]], expected.numpy())
        chosen.add(best)
    assert chosen == {"calm", "sure"}
