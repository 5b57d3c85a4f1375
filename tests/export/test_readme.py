"""Oracle: the probabilities that Onsight computes from the same files."""

import numpy as np
import pytest
import torch
from PIL import Image
from readme_program import run_readme
from test_onnx_file import FACTS, PREPARED
from torch import nn

import onsight
from onsight.errors import OutputError
from onsight.export.readme import readme_path, write_readme
from onsight.export.to_onnx import write_onnx
from onsight.export.whole import as_program
from onsight.models.classifier import Classifier

GREEN = (10, 200, 60)


@pytest.fixture
def odd_images(tmp_path):
    """A transparent, a turned, a large and three grey images, none of the model's shape."""
    draw = np.random.default_rng(0)
    smooth = Image.fromarray(draw.integers(0, 256, (6, 9, 4), np.uint8)).resize((90, 60))
    turned = Image.Exif()
    turned[0x0112] = 6
    smooth.save(tmp_path / "clear.png")
    smooth.convert("RGB").save(tmp_path / "turned.png", exif=turned)
    smooth.convert("LA").save(tmp_path / "grey.png")
    smooth.convert("P").resize((240, 40)).save(tmp_path / "wide.png")
    for name in ("deep.png", "deep.tif"):
        Image.fromarray(np.asarray(smooth.convert("L"), np.uint16) * 250).save(tmp_path / name)
    return sorted(tmp_path.iterdir())


@pytest.mark.parametrize("channels", [1, 3])
def test_the_program_computes_what_onsight_does(odd_images, channels, tmp_path, monkeypatch):
    torch.manual_seed(0)
    scaling = {"mean": PREPARED.mean[:channels], "std": PREPARED.std[:channels]}
    prepared = PREPARED.model_copy(update={"channels": channels, **scaling})
    net = nn.Sequential(nn.Flatten(), nn.Linear(channels * 80, 5)).eval()
    classifier = Classifier(net, prepared.normalization, "fp32", torch.device("cpu"), 3.0)
    facts = FACTS | {"image": prepared.facts()}
    write_onnx(as_program(classifier, prepared.format), facts, tmp_path / "model.onnx")
    predictor = onsight.load(tmp_path / "model.onnx")
    for fit in ("stretch", "crop", "pad"):
        changed = prepared.model_copy(update={"fit": fit, "background": GREEN})
        predictor.format = changed.format
        expected = predictor.predict_proba(odd_images)
        readme = tmp_path / "README.md"
        write_readme(readme, "model.onnx", "onnx", facts | {"image": changed.facts()})
        found = [run_readme(readme, path, monkeypatch) for path in odd_images]
        assert np.abs(np.stack(found) - expected).max() <= 1e-4
        assert np.ptp(expected, axis=0).min() > 0.001  # so that wrong pixels would show


def test_probabilities_are_not_called_calibrated_unless_they_were(tmp_path):
    readme, error = tmp_path / "README.md", "Expected calibration error: 8.0% (n = 400)."
    measured = {"accuracy": 0.9, "accuracy_low": 0.8, "accuracy_high": 1.0, "images": 400}
    measured |= {"expected_calibration_error": 0.08, "temperature_reason": "38 validation images"}
    facts = {**FACTS, "image": PREPARED.facts(), "results": measured}
    write_readme(readme, "m.onnx", "onnx", facts | {"temperature": 1.0})
    assert f"They were not calibrated (38 validation images). {error}" in readme.read_text()
    write_readme(readme, "m.onnx", "onnx", facts | {"temperature": 1.5})
    stated = "They were calibrated with a temperature of 1.5 (38 validation images)."
    assert f"{stated} {error}" in readme.read_text()


def test_the_preprocessing_is_stated(tmp_path):
    colour = {
        "channels": 3,
        "height": 20,
        "width": 30,
        "mean": [0.1, 0.2, 0.3],
        "std": [1.5, 2.5, 3.5],
    }
    image = PREPARED.facts() | colour | {"fit": "pad", "background": list(GREEN)}
    image |= {"input_size": [10, 15]}
    facts = {**FACTS, "image": image, "out_of_distribution": {"threshold": 0.25}}
    write_readme(tmp_path / "README.md", "m.onnx", "onnx", facts)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    for fact in (
        "(B, 20, 30, 3)",
        "in the order red, green, blue",
        "the colour 10, 200, 60",
        "fit into 30 × 20 pixels",
        "bilinear interpolation with antialiasing",
        "resizes images to 15 × 10 pixels, divides by 255, subtracts 0.1, 0.2, 0.3, and divides by "
        "1.5, 2.5, 3.5",
        "`scores`, float32, (B,): an image with a score above 0.25 is unlike",
    ):
        assert fact in text


def test_another_readme_is_left_alone(tmp_path):
    assert readme_path(tmp_path / "m.onnx") == tmp_path / "README.md"
    (tmp_path / "README.md").write_text("mine")
    assert readme_path(tmp_path / "m.onnx") == tmp_path / "m.onnx.README.md"
    (tmp_path / "m.onnx.README.md").write_text("mine too")
    with pytest.raises(OutputError, match="not a README written by Onsight"):
        readme_path(tmp_path / "m.onnx")
