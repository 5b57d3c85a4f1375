"""The model file of a blend: all comes back, a member can be used alone, damage is told."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from planted_blend import (
    CPU,
    TEMPERATURE,
    WEIGHTS,
    draw_images,
    expected_probabilities,
    plant_blend,
)

from onsight.errors import ModelError
from onsight.models.build import build_classifier
from onsight.models.file import BlendFile, load_model_file, save_model
from onsight.tensorfile import read_tensors, write_tensors


@pytest.fixture(scope="module")
def blend(trained):
    return plant_blend(load_model_file(trained.path))


@pytest.fixture(scope="module")
def images(blend):
    return draw_images(blend.format)


def test_the_whole_blend_comes_back(blend, images, tmp_path):
    save_model(tmp_path / "model.safetensors", blend)
    loaded = load_model_file(tmp_path)
    assert isinstance(loaded, BlendFile)
    assert dict(loaded.member_weights) == WEIGHTS
    assert list(loaded.members) == list(WEIGHTS)
    for field in ("classes", "results", "provenance", "temperature", "feature_member", "format"):
        assert getattr(loaded, field) == getattr(blend, field)
    assert loaded.format.model_size == blend.members["large"].format.model_size == (19, 16)
    assert loaded.seen.tolist() == sorted(blend.seen.tolist())
    for name, member in loaded.members.items():
        given = blend.members[name]
        for field in ("model", "preprocessing", "temperature", "weights_license", "results"):
            assert getattr(member, field) == getattr(given, field)
        assert all(torch.equal(member.weights[key], given.weights[key]) for key in given.weights)
    state = torch.get_rng_state()
    classifier = build_classifier(loaded, CPU)
    assert torch.equal(torch.get_rng_state(), state)
    found = classifier(images).softmax(1).numpy()
    assert np.allclose(found, expected_probabilities(blend, images), atol=1e-6)
    assert classifier.temperature == TEMPERATURE
    assert np.ptp(found[:, 0]) > 0.1


def test_a_member_alone_is_its_own_classifier(blend, images, tmp_path):
    save_model(tmp_path / "model.safetensors", blend)
    for name, given in blend.members.items():
        alone = load_model_file(tmp_path, member=name)
        assert alone.temperature == given.temperature
        assert (alone.out_of_distribution is not None) == (name == "own")
        expected = build_classifier(given, CPU)(images)
        assert torch.equal(build_classifier(alone, CPU)(images), expected)
        save_model(tmp_path / "alone.safetensors", alone)  # a whole model file by itself
        again = load_model_file(tmp_path / "alone.safetensors")
        assert torch.equal(build_classifier(again, CPU)(images), expected)


def test_a_member_that_is_not_there_is_told(blend, trained, tmp_path):
    save_model(tmp_path / "model.safetensors", blend)
    with pytest.raises(ModelError, match="no member 'smal'.*own, large, small.*mean small"):
        load_model_file(tmp_path, member="smal")
    with pytest.raises(ModelError, match="is a single network, not a blend"):
        load_model_file(trained.path, member="own")
    with pytest.raises(ModelError, match="--member NAME"):
        build_classifier(load_model_file(tmp_path), CPU, torch.nn.Identity())


def test_a_file_of_version_3_is_read(trained, tmp_path):
    file = load_model_file(trained.path)
    path = tmp_path / "model.safetensors"
    tensors, facts = read_tensors(trained.path / "model.safetensors")
    assert facts["version"] == 4
    del facts["weights_license"]
    write_tensors(path, tensors, facts | {"version": 3})
    assert load_model_file(path).preprocessing == file.preprocessing


def other_size(facts):
    facts["members"]["small"]["image"]["height"] += 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda facts: facts["members"].pop("small"), "tensors belong to none of its members"),
        (lambda facts: facts["members"].clear(), "tensors belong to none"),
        (lambda facts: facts["members"]["own"].pop("image"), "'image'"),
        (lambda facts: facts["members"]["own"].pop("weight"), "'weight'"),
        (lambda facts: facts["members"]["own"].update(weight=0.4), "sum to 1"),
        (lambda facts: facts["members"]["own"].update(weight=-0.5), "above 0"),
        (lambda facts: facts["members"]["own"].update(weight=float("nan")), "above 0"),
        (lambda facts: facts["members"]["own"].update(weight="1"), "expected a float"),
        (lambda facts: facts["members"]["own"].update(temperature=0), "temperature"),
        (lambda facts: facts["members"]["own"].update(weights_license=3), "not 3"),
        (lambda facts: facts["members"].update(own=[]), "expected a dict"),
        (lambda facts: facts.update(members=[]), "expected a dict"),
        (lambda facts: facts.update(feature_member="other"), "'other' is not a member"),
        (lambda facts: facts.pop("feature_member"), "'feature_member'"),
        (lambda facts: facts.update(temperature=-1), "temperature"),
        (other_size, "images of different formats"),
    ],
)
def test_damaged_facts_are_refused(blend, tmp_path, damage, message):
    path = tmp_path / "model.safetensors"
    save_model(path, blend)
    tensors, facts = read_tensors(path)
    damage(facts)
    write_tensors(path, tensors, facts)
    with pytest.raises(ModelError, match=message):
        build_classifier(load_model_file(path), CPU)


def test_missing_and_strange_tensors_are_named(blend, tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(path, blend)
    tensors, facts = read_tensors(path)
    name = next(key for key in tensors if key.startswith("members/large/"))
    write_tensors(path, {key: value for key, value in tensors.items() if key != name}, facts)
    with pytest.raises(ModelError, match=f"{name.removeprefix('members/large/')} is missing"):
        build_classifier(load_model_file(path), CPU)
    write_tensors(path, {**tensors, "members/extra/weight": torch.zeros(1)}, facts)
    with pytest.raises(ModelError, match="tensors belong to none"):
        load_model_file(path)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "-a", "é", "x" * 65])
def test_names_that_cannot_be_folders_are_refused(blend, name):
    with pytest.raises(ValueError, match="cannot be named"):
        replace(blend, members={name: blend.members["own"]}, member_weights={name: 1.0})


def test_what_is_no_blend_is_refused(blend):
    own = blend.members["own"]
    four = dict.fromkeys("abcd", own)
    with pytest.raises(ValueError, match="1 to 3 members, not 4"):
        replace(blend, members=four, member_weights=dict.fromkeys(four, 0.25))
    others = {**blend.members, "large": replace(own, classes=("x", "y"))}
    with pytest.raises(ValueError, match="different classes"):
        replace(blend, members=others)
    with pytest.raises(ValueError, match="one weight for each"):
        replace(blend, member_weights={"own": 1.0})
    alone = replace(blend, members={"own": own}, member_weights={"own": 1.0}, feature_member="own")
    assert alone.classes == own.classes
