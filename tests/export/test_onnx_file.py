"""Oracle: what torch computes from the same images."""

import runpy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import onsight
from odd_files import odd_files
from onsight.data.normalization import Normalization
from onsight.data.shrink import shrink
from onsight.errors import ModelError
from onsight.evaluation.out_of_distribution import logits_and_scores
from onsight.export.int8 import write_int8
from onsight.export.to_onnx import write_onnx
from onsight.export.whole import as_program
from onsight.inference.onnx_runner import INPUT, load_onnx
from onsight.models.classifier import Classifier
from onsight.models.out_of_distribution import OutOfDistributionDetector
from onsight.models.preprocessing import Preprocessing

ODD = Path(__file__).parents[1] / "data" / "odd_images.py"
PREPARED = Preprocessing(
    height=16,
    width=12,
    channels=3,
    fit="stretch",
    background=(0, 0, 0),
    pixel_limit=10_000,
    input_size=(10, 8),
    mean=(0.4, 0.5, 0.6),
    std=(0.2, 0.3, 0.4),
    precision="fp32",
)

FACTS = {
    "format": "onsight-onnx",
    "version": 1,
    "model": "little",
    "classes": list("abcde"),
    "image": PREPARED.facts(),
    "temperature": 2.5,
    "results": {},
}


class Little(nn.Module):
    """A convolution and a linear layer; `forward` is what tests change."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.linear = nn.Linear(4, 5)

    def forward(self, x):
        return self.linear(self.conv(x).relu().amax((2, 3))) * 20


def little(size=PREPARED.input_size, temperature=1.0):
    scaling = Normalization(PREPARED.mean, PREPARED.std, size)
    return Classifier(Little().eval(), scaling, "fp32", torch.device("cpu"), temperature)


def test_every_bar_has_the_same_probabilities(trained, shared_bars, onnx_file):
    images = sorted(shared_bars.rglob("*.png"))
    by_torch, exported = onsight.load(trained.path), onsight.load(onnx_file)
    assert np.allclose(exported.predict_proba(images), by_torch.predict_proba(images), atol=1e-5)
    assert exported.predict(images) == by_torch.predict(images)
    assert exported.classes == by_torch.classes
    assert repr(exported) == repr(by_torch).replace("device cpu", "device cpu, by onnxruntime")


def test_the_scores_of_unlike_images_are_torchs(tmp_path):
    net, draw = Little().eval(), np.random.default_rng(0)
    bank = F.normalize(torch.from_numpy(draw.standard_normal((30, 4))), dim=1).half()
    stored = OutOfDistributionDetector(bank, threshold=0.3, false_alarm_rate=0.01, images=99)
    facts = FACTS | {
        "out_of_distribution": {"threshold": stored.threshold, "share": stored.false_alarm_rate}
    }
    classifier = Classifier(net, PREPARED.normalization, "fp32", torch.device("cpu"), 1.0, stored)
    write_onnx(as_program(classifier, PREPARED.format, True), facts, tmp_path / "a.onnx")
    runner = load_onnx(tmp_path / "a.onnx")
    images = draw.integers(0, 256, (7, 16, 12, 3), np.uint8)
    _, expected = logits_and_scores(classifier, torch.from_numpy(images))
    found = runner.run(images)
    assert np.allclose(found.scores, expected.numpy(), atol=1e-5)
    assert runner.threshold == stored.threshold
    assert found.out_of_distribution(runner.threshold) == (expected > stored.threshold).tolist()


def test_odd_images_have_the_same_label_within_a_ten_thousandth(trained, onnx_file):
    images = [odd.data for odd in runpy.run_path(str(ODD))["odd_images"]()]
    images += [data for _, data in odd_files()]
    by_torch, exported = onsight.load(trained.path), onsight.load(onnx_file)
    expected, found = by_torch.predict_proba(images), exported.predict_proba(images)
    assert len(found) == len(images) >= 250
    assert np.abs(found - expected).max() <= 1e-4
    assert (found.argmax(1) == expected.argmax(1)).all()


def write_little(folder, size):
    """A little network as an ONNX file, its classifier, and the state to draw images with."""
    torch.manual_seed(0)
    classifier, path = little(size, 2.5), folder / "little.onnx"
    write_onnx(as_program(classifier, PREPARED.format), FACTS, path)
    return path, classifier, torch.get_rng_state()


@pytest.fixture(scope="module")
def little_file(tmp_path_factory):
    """What `write_little` returns for images that are shrunk; do not modify the file."""
    return write_little(tmp_path_factory.mktemp("little"), PREPARED.input_size)


def assert_same_probabilities(path, classifier, random_state, count):
    torch.set_rng_state(random_state)
    images = torch.randint(0, 256, (count, 16, 12, 3), dtype=torch.uint8)
    expected = classifier(images).softmax(1).numpy()
    found = load_onnx(path).run(images.numpy()).probabilities
    assert np.abs(found - expected).max() <= 1e-5
    assert expected.max() < 0.99  # so that a missing temperature would show


@pytest.mark.parametrize("count", [1, 3])
def test_resize_normalization_and_temperature_are_inside(little_file, count):
    assert_same_probabilities(*little_file, count)


def test_enlarging_is_inside(tmp_path):
    assert_same_probabilities(*write_little(tmp_path, (10, 15)), count=3)


@pytest.mark.parametrize("in_8_bits", [False, True])
def test_the_graph_shrinks_images_to_the_bit(little_file, tmp_path, in_8_bits):
    path, *_ = little_file
    images = np.random.default_rng(0).integers(0, 256, (7, 16, 12, 3), np.uint8)
    if in_8_bits:
        write_int8(path, images, tmp_path / "int8.onnx")
        path = tmp_path / "int8.onnx"
    model = onnx.load(path)
    is_quantized = "QuantizeLinear" in {node.op_type for node in model.graph.node}
    assert is_quantized == in_8_bits
    pixels = next(node.input[0] for node in model.graph.node if node.op_type == "Div")
    model.graph.output.add().name = pixels
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (found,) = session.run([pixels], {INPUT: images})
    expected = shrink(torch.from_numpy(images), (10, 8)).permute(0, 3, 1, 2)
    assert np.array_equal(found, expected.numpy())


def test_the_file_is_sound_onnx_and_says_nothing_of_this_machine(onnx_file):
    model = onnx.load(onnx_file)
    onnx.checker.check_model(model, full_check=True)
    assert [entry.key for entry in model.metadata_props] == ["onsight"]
    assert str(Path(onsight.__file__).parent).encode() not in onnx_file.read_bytes()


def eigenvalues(self, x):
    return self.linear(torch.linalg.eigvals(x[:, 0, :4, :4]).real)


def by_content(self, x):
    return self.linear(x[:, 0, 0, :4]) if x.sum() > 0 else x


def two_at_a_time(self, x):
    return self.linear(x.reshape(2, -1)[:, :4])


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (eigenvalues, "ONNX cannot export this network, because of the operator aten.linalg_eig"),
        (by_content, "if x.sum() > 0"),
        (two_at_a_time, "specialized it to be a constant"),
    ],
)
def test_a_network_that_cannot_be_exported_is_one_message(
    monkeypatch, capfd, tmp_path, forward, said
):
    monkeypatch.setattr(Little, "forward", forward)
    with pytest.raises(ModelError) as refused:
        write_onnx(as_program(little(), PREPARED.format), {}, tmp_path / "bad.onnx")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
