"""A blend as one graph. Oracle: the plain sum of the members' probabilities, in float64."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from planted_blend import CPU, draw_images, expected_probabilities

import onsight
from onsight.cli import main
from onsight.evaluation.out_of_distribution import logits_and_scores
from onsight.export import proof
from onsight.export.export import export
from onsight.export.format import find_format
from onsight.export.int8 import write_int8
from onsight.models.build import build_classifier
from onsight.models.file import load_model_file


@pytest.fixture(autouse=True)
def briefly(monkeypatch):
    """Speed is measured in as few rounds as possible."""
    monkeypatch.setattr(proof, "_MIN_SECONDS", 0)
    monkeypatch.setattr(proof, "_MIN_ROUNDS", 1)


@pytest.fixture(scope="module")
def exported(blended, tmp_path_factory):
    """The whole blend as model.onnx, which nobody changes."""
    target = tmp_path_factory.mktemp("onnx") / "model.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "_MIN_SECONDS", 0)
        patch.setattr(proof, "_MIN_ROUNDS", 1)
        return export(blended, out=target)


@pytest.fixture(scope="module")
def blend(blended):
    return load_model_file(blended)


def test_one_graph_shrinks_enlarges_and_blends(exported, blend):
    runner = onsight.load(exported.path).runner
    for count in (1, 7, 20):
        images = draw_images(blend.format, count)
        found = runner.run(images.numpy())
        expected = expected_probabilities(blend, images)
        assert np.abs(found.probabilities - expected).max() <= 1e-5
        _, scores = logits_and_scores(build_classifier(blend, CPU), images)
        assert np.allclose(found.scores, scores.numpy(), atol=1e-5)
    assert exported.proof.agree == exported.proof.images
    assert exported.proof.largest_difference <= 1e-5


def test_the_files_name_the_members(exported, blend):
    members = {
        name: {"model": file.model, "weight": blend.member_weights[name]}
        for name, file in blend.members.items()
    }
    assert exported.facts["members"] == members
    assert onsight.load(exported.path).runner.metadata["members"] == members
    assert exported.facts["model"] == "blend of compact, compact and quick"


@pytest.mark.parametrize("to", ["torch-export"])
def test_another_format_says_the_same(blended, tmp_path, to):
    done = export(blended, to=to, out=tmp_path / "m.pt2")
    assert done.proof.agree == done.proof.images
    assert done.proof.largest_difference <= 1e-5


def test_a_member_alone_is_exported(blended, blend, tmp_path, capsys):
    words = ["export", str(blended), "--member", "small", "--out", str(tmp_path / "m.pt2")]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--to", "torch-export", "--json"])
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["member"] == "small"
    images = draw_images(blend.format)
    expected = build_classifier(blend.members["small"], CPU)(images).softmax(1).numpy()
    found = find_format("torch-export").run(tmp_path / "m.pt2")(images.numpy())
    assert np.abs(found - expected).max() <= 1e-5


def test_in_8_bits_the_last_layers_and_blending_stay_in_fp32(exported, blend, tmp_path):
    path = tmp_path / "int8.onnx"
    images = draw_images(blend.format, 64, seed=3).numpy()
    write_int8(exported.path, images, path)
    model = onnx.load(path)
    makers = {output: node for node in model.graph.node for output in node.output}
    converted = {"DequantizeLinear", "QuantizeLinear"}
    assert converted <= {node.op_type for node in model.graph.node}
    # From the probabilities back to the last layer of each member, nothing is in 8 bits, nor are
    # the weights of these layers.
    values, last_layers = [model.graph.output[0].name], []
    while values:
        node = makers.get(values.pop())
        if node is None:
            continue
        assert node.op_type not in converted
        if node.op_type in ("Gemm", "MatMul", "Conv"):
            last_layers.append(node)
            weight = makers.get(node.input[1])
            assert weight is None or weight.op_type not in converted
        else:
            values += node.input
    assert len({node.name for node in last_layers}) == 3
    session = onnxruntime.InferenceSession(path.read_bytes())
    found = session.run(["probabilities"], {"images": images})[0]
    expected = expected_probabilities(blend, torch_images(images))
    assert np.abs(found - expected).mean() < 0.02


def torch_images(images):
    import torch

    return torch.from_numpy(images)
