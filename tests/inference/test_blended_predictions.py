"""A blend used by the commands. Oracle: the plain sum of the members' probabilities in float64."""

import csv
import json

import numpy as np
import pytest
import torch
from planted_blend import CPU, expected_probabilities

import onsight
from onsight.cli import main
from onsight.errors import ModelError
from onsight.features.feature_pass import logits_and_features
from onsight.inference.images import read_image
from onsight.inference.resumable_file import describe_job
from onsight.models.build import build_classifier
from onsight.models.catalog import load_weights, make_model, preferred_size
from onsight.models.file import load_model_file


def command(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


@pytest.fixture(scope="module")
def blend(blended):
    return load_model_file(blended)


@pytest.fixture(scope="module")
def paths(shared_bars):
    return sorted(shared_bars.rglob("*.png"))[::4]


@pytest.fixture(scope="module")
def images(paths, blend):
    """The images as packed, uint8 (n, H, W, C)."""
    return torch.from_numpy(np.stack([read_image(path, blend.format) for path in paths]))


def test_predictions_are_the_weighted_mean_in_batches_of_any_size(blended, blend, paths, images):
    predictor = onsight.load(blended)
    expected = expected_probabilities(blend, images)
    assert np.allclose(predictor.predict_proba(paths), expected, atol=1e-6)
    alone = np.stack([predictor.predict_proba(path) for path in paths])
    assert np.allclose(alone, expected, atol=1e-6)
    predictor.runner.use_all_cores()
    assert np.allclose(predictor.predict_proba(paths), expected, atol=1e-6)
    assert "blend of compact, compact and quick" in repr(predictor)


@pytest.mark.parametrize("name", ["own", "large", "small"])
def test_a_member_alone_predicts_as_its_own_classifier(
    blended, blend, paths, images, name, capsys, tmp_path
):
    member = build_classifier(blend.members[name], CPU)
    expected = member(images).softmax(1).numpy()
    predictor = onsight.load(blended, member=name)
    assert np.array_equal(predictor.predict_proba(paths), expected)
    rows = tmp_path / "rows.csv"
    words = ["predict", blended, *paths, "--member", name, "--csv", rows]
    assert command(capsys, *words)[0] == 0
    with rows.open() as file:
        found = [row["predicted"] for row in csv.DictReader(file)]
    assert found == [blend.classes[winner] for winner in expected.argmax(1)]


def test_eval_counts_what_the_mean_gets_right(blended, blend, shared_bars, capsys):
    paths = sorted(shared_bars.rglob("*.png"))
    right = {}
    for name in ("", "small"):
        options = ["--member", name] if name else []
        code, out, _ = command(capsys, "eval", blended, shared_bars, "--json", *options)
        assert code == 0
        right[name] = json.loads(out.splitlines()[-1])
    packed = torch.from_numpy(np.stack([read_image(path, blend.format) for path in paths]))
    labels = np.array([blend.classes.index(path.parent.name) for path in paths])
    unseen = find_unseen(blended, shared_bars, paths)
    expected = expected_probabilities(blend, packed)[unseen].argmax(1) == labels[unseen]
    assert right[""]["images"] == unseen.sum()
    assert right[""]["accuracy"] == pytest.approx(expected.mean())
    alone = build_classifier(blend.members["small"], CPU)(packed).argmax(1).numpy()
    assert right["small"]["accuracy"] == pytest.approx((alone == labels)[unseen].mean())
    assert right["small"]["model"] == "quick"
    assert right["small"]["temperature"] == blend.members["small"].temperature


def find_unseen(run, data, paths):
    """Which images the run held out, according to its table of predictions."""
    with (run / "predictions.csv").open() as file:
        held_out = {row["path"] for row in csv.DictReader(file)}
    return np.array([str(path.relative_to(data)) in held_out for path in paths])


def test_features_and_scores_are_those_of_the_feature_member(blended, blend, paths, images):
    own = build_classifier(blend.members["own"], CPU)
    expected = logits_and_features(own, images)[1].numpy()
    predictor = onsight.load(blended)
    assert np.allclose(predictor.embed(paths), expected, atol=1e-6)
    flags = [row.out_of_distribution for row in predictor.predictions(paths)]
    scores = np.array([row.score for row in predictor.predictions(paths)])
    bank = blend.out_of_distribution.bank.float().numpy()
    units = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    wanted = 1 - np.sort(units @ bank.T, axis=1)[:, -5]
    assert np.allclose(scores, wanted, atol=1e-5)
    assert flags == (scores > blend.out_of_distribution.threshold).tolist()
    assert onsight.load(blended, member="large").classifier.out_of_distribution is None


@pytest.mark.parametrize(("name", "width"), [("", "own"), ("large", "large")])
def test_embed_says_whose_features_they_are(
    blended, blend, paths, images, name, width, capsys, tmp_path
):
    file = tmp_path / "features.npz"
    options = ["--member", name] if name else []
    code, _, err = command(capsys, "embed", blended, *paths, "--out", file, *options)
    assert code == 0
    assert ("features are those of the blend's member own" in err) == (not name)
    member = build_classifier(blend.members[width], CPU)
    expected = logits_and_features(member, images)[1].numpy()
    with np.load(file) as content:
        assert np.allclose(content["features"], expected, atol=1e-6)


def test_similar_searches_with_the_feature_member(blended, shared_bars, paths, capsys):
    query = paths[0]
    words = ["similar", blended, query, "--among", shared_bars, "--json"]
    code, out, err = command(capsys, *words)
    assert code == 0
    assert "features are those of the blend's member own" in err
    alone = command(capsys, *words, "--member", "own")
    assert "features are those" not in alone[2]
    assert json.loads(out) == json.loads(alone[1])
    other = command(capsys, *words, "--member", "large")
    assert json.loads(other[1]) != json.loads(out)


def test_heat_maps_of_a_blend_are_drawn(blended, paths, tmp_path, capsys):
    pytest.importorskip("captum")
    words = ["predict", blended, *paths[:2], "--heatmap", tmp_path / "heat"]
    assert command(capsys, *words)[0] == 0
    assert len(list((tmp_path / "heat").iterdir())) == 2


def test_a_member_that_does_not_exist_is_told_with_those_that_do(blended, trained, paths, capsys):
    for verb in ("predict", "embed", "similar"):
        out = ["--out", "never.npz"] if verb == "embed" else []
        code, _, err = command(capsys, verb, blended, paths[0], "--member", "larg", *out)
        assert code == 2
        assert "its members are own, large, small. Did you mean large?" in " ".join(err.split())
    code, _, err = command(capsys, "predict", trained.path, paths[0], "--member", "own")
    assert code == 2
    assert "is a single network, not a blend" in " ".join(err.split())


def test_rows_of_different_members_are_different_jobs(blended):
    runner = onsight.load(blended).runner
    assert describe_job(blended, "own", runner) != describe_job(blended, "small", runner)


def test_a_network_starts_from_a_member(blended, blend):
    size = blend.members["large"].preprocessing.input_shape
    net = make_model("compact", size, len(blend.classes))
    loaded = load_weights(net, str(blended), "large")
    assert loaded.sentence.endswith(f"from member large of {blended / 'model.safetensors'}")
    given = blend.members["large"].weights
    assert all(torch.equal(given[name], tensor) for name, tensor in net.state_dict().items())
    assert preferred_size("compact", str(blended), "large") == size[1:]
    compact = make_model("compact", blend.members["own"].preprocessing.input_shape, 2)
    assert "from member own of" in load_weights(compact, str(blended)).sentence
    with pytest.raises(ModelError, match="no member 'none'"):
        load_weights(net, str(blended), "none")


def test_a_member_of_no_blend_cannot_be_trained_from(trained, blended, shared_bars, capsys):
    code, _, err = command(capsys, "train", shared_bars, "--member", "own")
    assert code == 2
    assert "add --weights" in err
    code, _, err = command(
        capsys, "train", shared_bars, "--model", "compact", "--weights", trained.path,
        "--member", "own",
    )  # fmt: skip
    assert code == 2
    assert "is a single network, not a blend" in " ".join(err.split())


def test_training_goes_on_from_a_member(blended, shared_bars, tmp_path):
    run = onsight.train(
        shared_bars, out=tmp_path / "run", model="compact", weights=str(blended), member="large",
        epochs=1, threads=1,
    )  # fmt: skip
    assert 'member = "large"' in (run.path / "config.toml").read_text()
    assert load_model_file(run.path).preprocessing.input_shape[1:] == (19, 16)
